"""Times as the API spells them (k8s.io/apimachinery, meta/v1). Pure: whoever asks says which moment, in UTC."""

from datetime import datetime


def format_time(moment: datetime) -> str:
    """As metav1.Time, to the second."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(moment: datetime) -> str:
    """As metav1.MicroTime."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
