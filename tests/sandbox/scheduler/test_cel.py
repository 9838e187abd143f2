"""Selectors are evaluated as kube-scheduler 1.36.2 evaluates them."""

import subprocess
import sys

import pytest

from gpuplane.sandbox.scheduler.cel import SelectorError, Variables, matches

DRIVER = "gpu.example.com"
DEVICE = Variables(
    driver=DRIVER,
    attributes={
        "name": {"string": "H100"},
        "cc": {"version": "9.0.0-rc.1"},
        "n": {"int": 8},
        "flag": {"bool": True},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
    },
    capacity={"memory": {"value": "80Gi"}, "frac": {"value": "1500m"}, "huge": {"value": "9999999999999999999G"}},
)
OURS = "device.attributes['gpu.example.com']"
MEMORY = "device.capacity['gpu.example.com'].memory"

TRUE = [
    f"device.driver == '{DRIVER}'",
    "device.driver.endsWith('example.com')",
    f"{OURS}.name == 'H100'",
    f"{OURS}.name.startsWith('H')",
    f"{OURS}.name in ['A100', 'H100']",
    f"{OURS}.name.matches('^H.*$')",
    f"{OURS}.name.lowerAscii() == 'h100'",
    f"{OURS}.name.split('1').size() == 2",
    f"{OURS}.n >= 2 && {OURS}.n <= 8",
    f"{OURS}.n == 8.0",
    f"{OURS}['n'] == 8",
    f"{OURS}.flag",
    "device.allowMultipleAllocations == false",
    "device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:01'",
    # what is not there
    "!('pcieRoot' in device.attributes['gpu.example.com'])",
    "'pcieRoot' in device.attributes['resource.kubernetes.io']",
    "has(device.attributes['resource.kubernetes.io'].pcieRoot)",
    f"!has({OURS}.missing)",
    f"{OURS}[?'missing'].orValue(4) == 4",
    f"{OURS}[?'n'].orValue(0) > 3",
    f"{OURS}.?n.hasValue() && !{OURS}.?missing.hasValue()",
    f"{OURS}.missing == 'x' || true",
    f"!({OURS}.missing == 'x' && false)",
    f"true || {OURS}.missing == 'x'",
    # a domain that is not there reads as an empty map, but is no member of the map
    "!has(device.attributes['nowhere.example.com'].x)",
    "!has(device.capacity['nowhere.example.com'].x)",
    "device.attributes['nowhere.example.com'][?'x'].orValue('none') == 'none'",
    "size(device.attributes['nowhere.example.com']) == 0",
    "!('nowhere.example.com' in device.attributes)",
    "'nowhere.example.com' in device.attributes ? device.attributes['nowhere.example.com'].x == 1 : true",
    "device.attributes.exists(d, d == 'resource.kubernetes.io') && size(device.attributes) == 2",
    f"{OURS}.exists(k, k == 'flag')",
    f"cel.bind(a, {OURS}, a.n > 1 && a.flag)",
    "cel.bind(a, device.attributes['nowhere.example.com'], !has(a.x))",
    # quantities
    f"{MEMORY} == quantity('81920Mi')",
    f"{MEMORY}.compareTo(quantity('40Gi')) == 1 && {MEMORY}.compareTo(quantity('80Gi')) == 0",
    f"{MEMORY}.compareTo(quantity('81Gi')) == -1",
    f"{MEMORY}.isGreaterThan(quantity('40Gi')) && !{MEMORY}.isGreaterThan(quantity('80Gi'))",
    f"{MEMORY}.isLessThan(quantity('81Gi')) && !{MEMORY}.isLessThan(quantity('80Gi'))",
    f"{MEMORY}.isInteger() && {MEMORY}.asInteger() > 20000000000",
    "!device.capacity['gpu.example.com'].frac.isInteger()",
    "!device.capacity['gpu.example.com'].huge.isInteger()",
    "quantity('1e3') == quantity('1k') && quantity('1.5G') == quantity('1500M') && quantity('.5') == quantity('500m')",
    "isQuantity('1.3Gi') && isQuantity('2E') && !isQuantity('1,3G') && !isQuantity('200K') && !isQuantity('Mi')",
    # versions
    f"{OURS}.cc.isGreaterThan(semver('8.0.0')) && {OURS}.cc.isLessThan(semver('9.0.0'))",
    f"{OURS}.cc.compareTo(semver('9.0.0')) < 0 && {OURS}.cc.compareTo(semver('9.0.0-rc.1+any')) == 0",
    f"{OURS}.cc.major() == 9 && {OURS}.cc.minor() == 0 && {OURS}.cc.patch() == 0",
    f"{OURS}.cc == semver('9.0.0-rc.1') && {OURS}.cc != semver('9.0.0')",
    "semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10')) && semver('1.0.0-1').isLessThan(semver('1.0.0-a'))",
    "semver('v1.2', true) == semver('1.2.0') && semver('01.02.03', true) == semver('1.2.3')",
]
FAILING = [
    f"{OURS}.missing == 'x'",
    "device.attributes['nowhere.example.com'].x == 'y'",
    "device.capacity['nowhere.example.com'].x.isInteger()",
    "device.capacity['gpu.example.com'].frac.asInteger() == 1",
    f"{OURS}.missing == 'x' || false",
    f"{OURS}.missing == 'x' && true",
    f"{OURS}.n.isInteger()",
    f"{OURS}.cc.isInteger()",
    f"{OURS}.cc.isGreaterThan(quantity('1'))",
    "semver('abc').isLessThan(semver('1.0.0'))",
    f"{OURS}.n",
    "device.driver ==",
    "nosuch == 1",
    "device.name == 'gpu-0'",
    "device.driver == 1",
]


@pytest.mark.parametrize("expression", TRUE)
def test_what_selects_the_device(expression: str) -> None:
    assert matches(expression, DEVICE) is True
    assert matches(f"!({expression})", DEVICE) is False


@pytest.mark.parametrize("expression", [f"{OURS}.name == 1", f"{OURS}.n == 'x'", f"{MEMORY} == quantity('80G')"])
def test_what_does_not_select_it(expression: str) -> None:
    """Values of different types are not equal, and that is no error."""
    assert matches(expression, DEVICE) is False


@pytest.mark.parametrize("expression", FAILING)
def test_what_fails_for_the_device(expression: str) -> None:
    with pytest.raises(SelectorError):
        matches(expression, DEVICE)


def test_a_wrong_version_of_a_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="no semantic version"):
        Variables(DRIVER, {"v": {"version": "1.2"}}, {})


def test_a_missing_library_is_named() -> None:
    """Without cel-expr-python the sandbox runs, and the first selector says what to install."""
    program = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from gpuplane.sandbox.scheduler import cel\n"
        "try: cel.check_library()\n"
        "except cel.MissingLibrary as missing: print(missing)"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "pip install 'gpuplane[sandbox]'" in said
