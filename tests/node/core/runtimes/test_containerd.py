"""Which file of containerd's gets the key: imports, drop-ins, and files that a distribution writes anew."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.golden import Golden
from tests.node.core.runtimes.runs import copied, run, unchanged, without_parser_words

CRI = '[plugins."io.containerd.grpc.v1.cri"]\n'
NEW = '[plugins."io.containerd.cri.v1.runtime"]\n'


def node(folder: Path, main: str, **drop_ins: str) -> Path:
    """A main file that imports the folder conf.d beside it, and what is in there."""
    (folder / "conf.d").mkdir()
    file = folder / "config.toml"
    file.write_text(main.replace("IMPORTS", f'imports = ["{folder}/conf.d/*.toml"]'))
    for name, text in drop_ins.items():
        (folder / "conf.d" / f"{name}.toml").write_text(text)
    return file


def configured(file: Path, version: str, *more: object) -> str:
    """What is said when it is configured; the files are changed."""
    state = file.parent / "state"
    return run("containerd", "--config", file, "--runtime-version", version, "--state-dir", state, *more).output


def changed(file: Path, version: str, *more: object) -> list[str]:
    """The names of the files that are changed."""
    document = json.loads(configured(file, version, *more, "--json"))
    return [Path(each["path"]).name for each in document["changes"]]


def test_before_2_0_the_key_goes_into_the_drop_in_whose_table_is_in_force(tmp_path: Path) -> None:
    """A later table takes the place of an earlier one: in the main file the key would do nothing."""
    main, a, b, c = (
        f"version = 2\nIMPORTS\n{CRI}  enable_cdi = true\n",
        "oom_score = 1\n",
        f"{CRI}  x = 1\n",
        "[debug]\n",
    )
    file = node(tmp_path, main, a=a, b=b, c=c)

    with unchanged(tmp_path / "conf.d"):
        assert changed(file, "1.7.24", "--check") == ["b.toml"]
    configured(file, "1.7.24")

    assert (tmp_path / "conf.d/b.toml").read_text() == f"{CRI}  x = 1\n  enable_cdi = true\n"
    assert file.read_text() == main.replace("IMPORTS", f'imports = ["{tmp_path}/conf.d/*.toml"]')


def test_containerd_itself_has_that_table_in_force(tmp_path: Path) -> None:
    """Debian's containerd 1.6 shows the setting of the file that is chosen here, of three that have the table."""
    if shutil.which("containerd") is None:
        pytest.skip("no containerd here (Debian: apt install containerd)")
    texts = {name: f'version = 2\n{CRI}  sandbox_image = "of-{name}"\n' for name in ("a", "b", "c")}
    file = node(tmp_path, texts["a"].replace("version = 2", "version = 2\nIMPORTS"), b=texts["b"], c=texts["c"])

    dump = subprocess.run(
        ["containerd", "--config", file, "config", "dump"], capture_output=True, text=True, timeout=30
    )
    assert 'sandbox_image = "of-c"' in dump.stdout
    assert changed(file, "1.7.24") == ["c.toml"]


def test_from_2_0_on_the_last_file_that_has_the_key_has_the_word(tmp_path: Path) -> None:
    """Files are merged key by key: a false is turned where it stands last, and a table without the key says nothing."""
    file = node(
        tmp_path, f"version = 3\nIMPORTS\n{NEW}enable_cdi = true\n", a=f"{NEW}enable_cdi = false\n", b=f"{NEW}x = 1\n"
    )

    assert changed(file, "2.1.0") == ["a.toml"]
    assert (tmp_path / "conf.d/a.toml").read_text() == f"{NEW}enable_cdi = true\n"
    assert changed(file, "2.1.0") == []


def test_files_of_several_versions_have_their_own_name_of_the_plugin(tmp_path: Path) -> None:
    """From 2.0 on a drop-in of version 2 is read by version 2's name, below a main file of version 3."""
    file = node(tmp_path, "version = 3\nIMPORTS\n", a=f"version = 2\n{CRI}enable_cdi = false\n")

    assert changed(file, "2.0.1") == ["a.toml"]


def test_the_directories_of_a_drop_in_are_added_to(tmp_path: Path) -> None:
    """The list that is in force gets our directory; /run/cdi is /var/run/cdi."""
    file = node(tmp_path, f"version = 3\nIMPORTS\n{NEW}cdi_spec_dirs = ['/run/cdi/']\n")
    assert changed(file, "2.1.0") == []

    (tmp_path / "conf.d/z.toml").write_text(f"{NEW}cdi_spec_dirs = ['/etc/cdi']\n")
    configured(file, "2.1.0")
    assert (tmp_path / "conf.d/z.toml").read_text() == f"{NEW}cdi_spec_dirs = ['/etc/cdi', \"/var/run/cdi\"]\n"


def test_another_cdi_directory_is_added_to_the_usual_ones(tmp_path: Path) -> None:
    """An agent with a --cdi-dir of its own: the usual directories stay."""
    file = node(tmp_path, f"version = 3\n{NEW}x = 1\n")
    configured(file, "2.1.0", "--cdi-dir", "/opt/cdi")

    assert 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi", "/opt/cdi"]' in file.read_text()


def test_a_drop_in_that_is_asked_for(tmp_path: Path, golden: Golden) -> None:
    """From 2.0 on it takes the key, if it is imported and read last; it is made where there is none."""
    file = node(tmp_path, f"version = 3\nIMPORTS\n{NEW}enable_cdi = false\n")
    drop_in = tmp_path / "conf.d" / "99-gpuplane.toml"

    golden(configured(file, "2.1.0", "--drop-in-config", drop_in), "a new file")
    assert drop_in.read_text() == f"version = 3\n\n{NEW}  enable_cdi = true\n"

    (tmp_path / "conf.d" / "99-later.toml").write_text(f"{NEW}enable_cdi = false\n")
    golden(configured(file, "2.1.0", "--drop-in-config", drop_in), "not read last")


IMPORTS = [
    ("", "", "2.1.0"),
    ("no imports", "version = 2\n\n[debug]\n  level = 'info'\n", "1.7.24"),
    ("other imports", 'version = 3\nimports = ["/etc/none/*.toml"] # ours\n', "2.1.0"),
    ("comments alone", "# nothing\n# else\n", "1.7.24"),
    ("no first key", '[plugins."io.containerd.cri.v1.runtime"]\n', "2.1.0"),
]


@pytest.mark.parametrize(("case", "main", "version"), IMPORTS)
def test_a_drop_in_that_is_not_imported_is_imported(case: str, main: str, version: str, tmp_path: Path) -> None:
    """As nvidia-ctk does, by a pattern: containerd starts without the drop-in, too. --undo gives both back."""
    file, drop_in = tmp_path / "config.toml", tmp_path / "new.d" / "99-gpuplane.toml"
    if case:
        file.write_text(main)
    asked = ("--drop-in-config", drop_in, "--cdi-dir", "/opt/cdi")
    assert changed(file, version, *asked) == ["config.toml", "99-gpuplane.toml"], case

    read = tomllib.loads(file.read_text())
    assert read["imports"][-1] == f"{tmp_path}/new.d/*.toml"
    assert "/opt/cdi" in drop_in.read_text()
    assert len(file.read_text().splitlines()) <= len(main.splitlines()) + 2
    assert changed(file, version, *asked) == []

    run("containerd", "--undo", "--state-dir", tmp_path / "state")
    assert not drop_in.exists()
    assert (file.read_text() if case else file.exists()) == (main if case else False)


def test_a_pattern_that_would_import_more_than_the_drop_in_is_refused(tmp_path: Path, golden: Golden) -> None:
    """What was never read would suddenly count. So would a name that is not for TOML, and a base of unknown imports."""
    file, folder = tmp_path / "config.toml", tmp_path / "conf.d"
    file.write_text(f"version = 3\n{NEW}enable_cdi = false\n")
    folder.mkdir()
    (folder / "old.toml").write_text("root = '/elsewhere'\n")
    template = tmp_path / "config-v3.toml.tmpl"
    template.write_text('{{ template "base" . }}\n')

    with unchanged(tmp_path):
        golden(configured(file, "2.1.0", "--drop-in-config", folder / "99.toml"), "another file")
        golden(configured(file, "2.1.0", "--drop-in-config", tmp_path / "new.d" / "99.conf"), "another name")
        asked = ("--drop-in-config", tmp_path / "new.d" / "99.toml", "--cdi-dir", "/opt/cdi")
        golden(configured(template, "2.1.0", *asked), "base")


def test_before_2_0_a_drop_in_that_would_undo_the_rest_is_refused(tmp_path: Path, golden: Golden) -> None:
    """A drop-in of one key would take the place of the main file's table; where that has none, it may have the key."""
    file = node(tmp_path, f'version = 2\nIMPORTS\n{CRI}sandbox_image = "mine"\n')
    drop_in = tmp_path / "conf.d" / "99-gpuplane.toml"

    with unchanged(tmp_path):
        golden(configured(file, "1.7.24", "--drop-in-config", drop_in))

    file.write_text(file.read_text().partition("[plugins")[0])
    configured(file, "1.7.24", "--drop-in-config", drop_in)
    assert drop_in.read_text() == f"version = 2\n\n{CRI}  enable_cdi = true\n"


def test_a_drop_in_that_cannot_be_read_is_named(tmp_path: Path, golden: Golden) -> None:
    """All files that are wrong are told at once; an import that is not there is told, too."""
    file = node(tmp_path, "version = 2\nIMPORTS\n", a="x = \n", b="y = 1\ny = 2\n")
    said = configured(file, "1.7.24")
    assert "a.toml:1: " in said and "b.toml:2: " in said
    golden(without_parser_words(said), "no TOML")

    file.write_text('version = 2\nimports = ["gone.toml"]\n')
    golden(configured(file, "1.7.24"), "not there")


def test_imports_that_turn_in_a_circle_end(tmp_path: Path) -> None:
    """As in containerd, a file is read once."""
    file = node(tmp_path, "version = 2\nIMPORTS\n", a=f'imports = ["{tmp_path}/config.toml"]\n')

    assert changed(file, "1.7.24", "--check") == ["config.toml"]


def test_an_unknown_version_is_judged_by_the_file(tmp_path: Path, golden: Golden) -> None:
    """Version 3 of the configuration is containerd 2's; below, the key is right for 1.7 and 2.x. Both is said."""
    program = tmp_path / "says-nothing"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    known = ("--executable-path", program)
    three, two = node(tmp_path, f"version = 3\n{NEW}x = 1\n"), tmp_path / "two.toml"
    two.write_text("version = 2\n")

    for case, file, status in (("version 3", three, 0), ("version 2", two, 1), ("none", tmp_path / "none.toml", 1)):
        done = run("containerd", "--config", file, "--check", *known)
        assert done.exit_code == status, case
        golden(done.output, case)


@pytest.mark.parametrize(("version", "name"), [("1.7.24", "cri"), ("2.1.0", "io.containerd.cri.v1.images")])
def test_that_kubelet_cannot_use_it_is_said(version: str, name: str, tmp_path: Path, golden: Golden) -> None:
    """CRI that is disabled is no matter of CDI, but nobody should look for it."""
    file = node(tmp_path, f'root = "/x"\ndisabled_plugins = ["aufs", "{name}"]\n')

    said = configured(file, version, "--check")
    assert f"{file}:2 " in said and name in said
    golden(said)


def test_a_file_that_k3s_writes_anew_is_changed_by_its_template(tmp_path: Path, golden: Golden) -> None:
    """With a template, that gets the key; without one nothing is written, and what to do is said."""
    folder = tmp_path / "k3s/agent/etc/containerd"
    folder.mkdir(parents=True)
    file = folder / "config.toml"
    file.write_text(f"version = 2\n{CRI}  x = 1\n")

    with unchanged(tmp_path):
        golden(configured(file, "1.7.23-k3s2"), "without a template")

    copied("config.toml.tmpl", folder)
    assert changed(file, "1.7.23-k3s2", "--check") == ["config.toml.tmpl"]
    golden(configured(file, "1.7.23-k3s2"), "with one")
    assert changed(file, "1.7.23-k3s2") == []

    file.write_text(f"version = 3\n{NEW}  x = 1\n")  # the next k3s brings containerd 2: the old template is not used
    golden(configured(file, "2.1.4-k3s1"), "of the version before")


def test_a_template_over_the_base_has_no_place_for_a_table_that_the_base_has(tmp_path: Path, golden: Golden) -> None:
    """The table would be there twice, and containerd would not start."""
    folder = tmp_path / "rke2/agent/etc/containerd"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("version = 2\n")
    (folder / "config.toml.tmpl").write_text('{{ template "base" . }}\n\n[debug]\n  level = "info"\n')

    with unchanged(tmp_path):
        golden(configured(folder / "config.toml", "1.7.23"))


def test_microk8s_and_k0s(tmp_path: Path, golden: Golden) -> None:
    """MicroK8s has a template with variables in it; k0s says in the file that it is its own."""
    args, k0s = tmp_path / "microk8s/current/args", tmp_path / "k0s"
    args.mkdir(parents=True)
    k0s.mkdir()
    (args / "containerd.toml").write_text(f"version = 2\n{CRI}")
    (args / "containerd-template.toml").write_text(f'version = 2\n{CRI}  x = "${{RUNTIME}}"\n')
    (k0s / "containerd.toml").write_text("# k0s_managed=true\nversion = 2\n")

    assert changed(args / "containerd.toml", "1.7.20") == ["containerd-template.toml"]
    golden(configured(k0s / "containerd.toml", "1.7.20"), "k0s")
    (k0s / "containerd.toml").write_text("version = 2\n")
    assert changed(k0s / "containerd.toml", "1.7.20") == ["containerd.toml"]


def test_a_templates_own_words_are_not_written_over(tmp_path: Path, golden: Golden) -> None:
    """A list with an action of the template in it cannot be added to without losing that."""
    file = tmp_path / "config.toml.tmpl"
    file.write_text(f'version = 2\n{CRI}  enable_cdi = true\n  cdi_spec_dirs = ["{{{{ .Node.Folder }}}}"]\n')

    with unchanged(tmp_path):
        golden(configured(file, "1.7.23", "--check"))
