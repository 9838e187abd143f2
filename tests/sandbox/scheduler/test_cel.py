"""Selectors are evaluated as kube-scheduler 1.36.2 evaluates them; its API server's verdicts on expressions are ours.

The expressions and answers are recorded: `class/cel-*` of the API server and `cel/*` of the scheduler.
"""

import subprocess
import sys

import pytest

from gpuplane.sandbox.scheduler.cel import SelectorError, Variables, check_expression, matches

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
    shared=False,
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
    "device.capacity['gpu.example.com'].frac.asApproximateFloat() == 1.5",
    f"{MEMORY}.add(quantity('1Gi')).compareTo(quantity('81Gi')) == 0",
    f"sign({MEMORY}.sub(quantity('80Gi'))) == 0 && sign(quantity('-1')) == -1 && sign(quantity('1m')) == 1",
    "quantity('50k').add(20) == quantity('50020') && quantity('50k').sub(20000) == quantity('30k')",
    "quantity('1e3') == quantity('1k') && quantity('1.5G') == quantity('1500M') && quantity('.5') == quantity('500m')",
    "isQuantity('1.3Gi') && isQuantity('2E') && !isQuantity('1,3G') && !isQuantity('200K') && !isQuantity('Mi')",
    # versions
    f"{OURS}.cc.isGreaterThan(semver('8.0.0')) && {OURS}.cc.isLessThan(semver('9.0.0'))",
    f"{OURS}.cc.compareTo(semver('9.0.0')) < 0 && {OURS}.cc.compareTo(semver('9.0.0-rc.1+any')) == 0",
    f"{OURS}.cc.major() == 9 && {OURS}.cc.minor() == 0 && {OURS}.cc.patch() == 0",
    f"{OURS}.cc == semver('9.0.0-rc.1') && {OURS}.cc != semver('9.0.0')",
    "semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10')) && semver('1.0.0-1').isLessThan(semver('1.0.0-a'))",
    "semver('v1.2', true) == semver('1.2.0') && semver('01.02.03', true) == semver('1.2.3')",
    "isSemver('1.0.0') && !isSemver('v1.0') && isSemver('v1.0', true) && !isSemver('1.0-rc', true)",
    "!isSemver('01.0.0') && !isSemver('1.0.0-01') && !isSemver('200K')",
]
FAILING = {  # expression: the words of Kubernetes
    f"{OURS}.missing == 'x'": "no such key: missing",
    "device.attributes['nowhere.example.com'].x == 'y'": "no such key: x",
    "device.capacity['nowhere.example.com'].x.isInteger()": "no such key: x",
    "device.capacity['gpu.example.com'].frac.asInteger() == 1": "cannot convert value to integer",
    f"{OURS}.missing == 'x' || false": "no such key: missing",
    f"{OURS}.missing == 'x' && true": "no such key: missing",
    f"{OURS}.n.isInteger()": "no such overload",
    f"{OURS}.cc.isInteger()": "no such overload",
    f"{OURS}.cc.isGreaterThan(quantity('1'))": "no such overload",
}
REFUSED = [  # by the API server, when somebody writes them
    "",
    "device.driver ==",
    "nosuch == 1",
    "device.nosuch == 1",
    "device.name == 'gpu-0'",
    "device.driver",
    "1 + 1",
    "device.driver == 1",
    "quantity('abc').sign() == 1",
    "now() > 1",
    "device.attributes['x'].y.includes('a')",
    "math.greatest(1,2) == 2",
    f"{OURS}.cc.isGreaterThan('8.0.0')",
    f"device.driver == '{'x' * (10 << 10)}'",
]
TAKEN = [  # though they may fail for a device
    f"{OURS}.type",
    "semver('abc').isLessThan(semver('1.0.0'))",
    "device.attributes['x'].y.lowerAscii().split('-').size() == 2",
    "device.attributes['x'].?y.hasValue()",
    "'a'.format([]) == 'a'",
    "true",
]
LEFT_OUT = {  # expression: whether the API server takes it, and we do not, or the other way round
    f"{OURS}.type.matches('(')": False,  # we find it only for a device that has the attribute
    "device.attributes['x'].all(k, device.attributes['x'].all(l, device.attributes['x'].all(m, "
    "device.attributes['x'].all(n, device.attributes['x'].all(o, k != l && m != n)))))": False,  # no estimate of costs
    "ip('10.0.0.1').family() == 4": True,
    "url('https://a').getHost() == 'a'": True,
    "[1,2].sum() == 3": True,
    "sets.contains([1],[1])": True,
    "format.dns1123Label().validate('a').hasValue()": True,
}


@pytest.mark.parametrize("expression", TRUE)
def test_what_selects_the_device(expression: str) -> None:
    assert check_expression(expression) == ""
    assert matches(expression, DEVICE) is True
    assert matches(f"!({expression})", DEVICE) is False


@pytest.mark.parametrize("expression", [f"{OURS}.name == 1", f"{OURS}.n == 'x'", f"{MEMORY} == quantity('80G')"])
def test_what_does_not_select_it(expression: str) -> None:
    """Values of different types are not equal, and that is no error."""
    assert matches(expression, DEVICE) is False


@pytest.mark.parametrize("expression", FAILING)
def test_what_fails_for_the_device(expression: str) -> None:
    assert check_expression(expression) == ""
    with pytest.raises(SelectorError) as failed:
        matches(expression, DEVICE)

    assert str(failed.value) == f"CEL runtime error: {FAILING[expression]}"


def test_a_result_that_is_no_truth_value_fails() -> None:
    with pytest.raises(SelectorError):
        matches(f"{OURS}.n", DEVICE)


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_refused_when_it_is_written(expression: str) -> None:
    assert check_expression(expression) != ""


@pytest.mark.parametrize("expression", TAKEN)
def test_what_is_taken_when_it_is_written(expression: str) -> None:
    assert check_expression(expression) == ""


@pytest.mark.parametrize("expression", LEFT_OUT)
def test_what_is_left_out_on_purpose(expression: str) -> None:
    """The API server's verdict is the other one. A line leaves this table when ours becomes the same."""
    assert (check_expression(expression) == "") is not LEFT_OUT[expression]


def test_a_wrong_version_of_a_device_is_an_error() -> None:
    with pytest.raises(ValueError, match="no semantic version"):
        Variables(DRIVER, {"v": {"version": "1.2"}}, {}, shared=False)


def test_a_missing_library_is_named() -> None:
    """Without cel-expr-python the sandbox runs, and the first selector says what to install."""
    program = (
        "import sys; sys.modules['cel_expr_python'] = None\n"
        "from gpuplane.sandbox.scheduler import cel\n"
        "try: cel.check_expression('true')\n"
        "except cel.MissingLibrary as missing: print(missing)"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert "pip install 'gpuplane[sandbox]'" in said
