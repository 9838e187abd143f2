"""Every command with good and wrong input: what `test_every_command` plays in terminals, as root and as nobody.

A new command needs a row that succeeds, one that does not, and one with `--json` where it has that option. The words
may name what `world.World` has made: {machine}, {state}, and so on.
"""

from typing import NamedTuple


class Row(NamedTuple):
    """One command line, and how it ends."""

    words: str
    status: int = 0
    says: str = ""
    """A part of what is written, with single spaces for line breaks."""
    nobody: int | None = None
    """The status as nobody, if another than as root."""
    verbatim: bool = False
    """Whether it prints a file, whose lines are as long as they are."""
    nothing: bool = False
    """Whether it succeeds without a result on standard output."""
    answers: bool = False
    """Whether status 1 is an answer, on standard output, and no error."""
    typed: str = ""
    until: str = ""
    """It runs until it is told to end, by SIGTERM, once it has written this."""
    after: str = ""
    """What takes back what it did to the agent, so that rows do not depend on others."""
    once: bool = False
    """Only at 60 columns: it takes long."""


RESUME, RESTORE = "driver resume --state-dir {state}", "health restore 3 --state-dir {state}"
WITHDRAW = "mig withdraw --state-dir {state}"

ROWS: dict[str, tuple[Row, ...]] = {
    "agent": (
        Row(
            "--machine {machine} --kubelet-root {fresh}/k --state-dir {fresh}/s --cdi-dir={fresh}/c",
            until="kubelet",
            verbatim=True,
        ),
        Row("--machine dgx-a10", 2, "did you mean dgx-a100"),
        Row("--machine {here}/none.yaml", 1, "none.yaml: No such file or directory"),
        Row("--mig-strategy mixd", 2, "did you mean 'mixed'?"),
    ),
    "cdi explain": (
        Row("nvidia.com/gpu=0 --spec-dir {specs}", says="device nodes"),
        Row("nvidia.com/gpu=0 --spec-dir {specs} --json"),
        Row("nvidia.com/gpu=77 --spec-dir {specs}", 1, "nvidia.com/gpu=77", answers=True),
        Row("nvidia.com/gpu=77 --spec-dir {specs} --json", 1, answers=True),
        Row("", 2, "Missing argument"),
    ),
    "cdi generate": (
        Row("--machine dgx-a100", verbatim=True, says="kind: nvidia.com/gpu"),
        Row("--machine dgx-a100 --format json", verbatim=True),
        Row(
            "--machine dgx-a100 --output {fresh}/made.yaml",
            says="made.yaml: 17 devices of nvidia.com/gpu",
            nothing=True,
        ),
        Row("--machine dgx-a100 --output {machine}/made.yaml", 1, "machine.yaml"),
        Row("--driver-root {here}/none", 1, "driver root"),
        Row("--machine dgx-a100 --mode nvlm", 2, "Did you mean 'nvml'?"),
        Row("--machine dgx-a100 --timeout nan", 2, "'nan' is not a number of seconds"),
        Row("--machine dgx-a100 --enable-hook chmod", verbatim=True, says="--enable-hook chmod has no effect"),
    ),
    "cdi list": (
        Row("--spec-dir {specs}", says="nvidia.com/gpu=0"),
        Row("--spec-dir {specs} --json"),
        Row("--spec-dir {wrong}", says="{wrong}", nothing=True),
        Row("--spec-dir {here}/none", says="No device is defined", nothing=True),
        Row("--spec-dir {here}/none --json"),
        Row("--sepc-dir {specs}", 2, "Did you mean '--spec-dir'?"),
    ),
    "cdi remove": (
        Row("--cdi-dir {fresh} --kubelet-root {here}/k --state-dir {here}/none", says="no specifications of gpuplane"),
        Row("--cdi-dir {fresh} --kubelet-root {here}/k --state-dir {here}/none --json"),
        Row("--cdi-dir {ours} --kubelet-root {here}/none --state-dir {here}/none", 1, "--force"),
        Row("now", 2, "unexpected extra argument"),
    ),
    "cdi validate": (
        Row("{specs}/nvidia.yaml", says="good"),
        Row("{specs}/nvidia.yaml --json"),
        Row("{wrong}/bad.yaml", 1, "bad.yaml:1: ", answers=True),
        Row("{wrong}/bad.yaml --json", 1, answers=True),
        Row("{here}/none.yaml", 1, "No such file or directory", answers=True),
        Row("{closed}/secret.yaml", 1, "secret.yaml", answers=True),
        Row("", 2, "Missing argument"),
    ),
    "choose": (
        Row("--machine {machine} --size 2", says="100"),
        Row("--machine {machine} --size 2 --json"),
        Row("--machine {machine} --size 9", 1, "9 requested, 8 available"),
        Row("--machine {machine} --size 9 --json", 1, "9 requested, 8 available", answers=True),
        Row("--machine {machine} --size 2 --required 0,1,2", 2, "--required"),
        Row("--machine {machine} --size 1 --available 0 --required 1", 2, "--available"),
        Row("--machine {machine} --size 1 --available 77", 1, "'77'"),
        Row("--machine {machine} --size 1 --resource nvidia.com/gpuu", 1, "nvidia.com/gpu"),
        Row("--machine {machine} --size 1 --config {wrong}/config.yaml", 1, "config.yaml:2: "),
        Row("--machine {machine} --size 1 --config {closed}/secret.yaml", 1, "secret.yaml"),
        Row("--machine {here}/none.yaml --size 1", 1, "none.yaml: No such file or directory"),
        Row("--machine dgx-a10 --size 1", 2, "did you mean dgx-a100"),
        Row("--machine {machine} --size 0", 2, "0 is not in the range"),
        Row("--machine {machine} --size 1 --policy pakced", 2, "Did you mean 'packed'?"),
    ),
    "completion": (
        Row("bash", verbatim=True, says="complete"),
        Row("zsh", verbatim=True, says="#compdef gpuplane"),
        Row("bas", 2, "Did you mean 'bash'?"),
        Row("", 2, "Missing argument"),
    ),
    "runbook": (
        Row("", says="GPULost"),
        Row("GPULost", verbatim=True, says="fallen off the bus"),
        Row("GPULots", 2, "Did you mean 'GPULost'?"),
        Row("Nonsense", 2, "Invalid value for '[ALERT]': 'Nonsense' is not one of 'GPUCountDecreased', "),
    ),
    "config check": (
        Row("{config}", says="good"),
        Row("{config} --json"),
        Row("{wrong}/config.yaml", 1, "config.yaml:2: ", answers=True),
        Row("{wrong}/config.yaml --json", 1, answers=True),
        Row("{here}/none.yaml", 1, "No such file or directory", answers=True),
        Row("{closed}/secret.yaml", 1, "secret.yaml", answers=True),
        Row("{unreadable}", 1, "unreadable.yaml", answers=True),
        Row("{config} --mig-stratgy none", 2, "--mig-strategy"),
    ),
    "config explain": (
        Row("{config} --machine {machine}", says="nvidia.com/gpu"),
        Row("{config} --machine a100-mig --mig-strategy mixed", says="nvidia.com/mig-"),
        Row("{config} --machine {machine} --json"),
        Row("{wrong}/config.yaml --machine {machine}", 1, "config.yaml:2: "),
        Row("{config} --machine {here}/none.yaml", 1, "No such file or directory"),
        Row("{config} --machine dgx-a10", 2, "did you mean dgx-a100"),
    ),
    "config reference": (
        Row("", says="| ", verbatim=True),
        Row("now", 2, "unexpected extra argument"),
    ),
    "demo": (
        Row("--profile {two}", says="scenes passed", once=True),
        Row("--profile {small}", 1, "small.yaml has GPU-0 with 0 MiB"),
        Row("--profile {here}/none.yaml", 1, "No such file or directory"),
        Row("--profile {here}/none.yaml --json", 1, "No such file or directory"),
        Row("--profile dgx-a10", 2, "did you mean dgx-a100"),
    ),
    "driver release": (
        Row("--for 10m --why firmware --state-dir {state}", says="released for 10 min: firmware", after=RESUME),
        Row("--for 10m --why firmware --state-dir {state} --json", after=RESUME),
        Row("--for 0s --why firmware --state-dir {state}", 2, "--for"),
        Row("--for 10m --why firmware --state-dir {here}/none", 1, "no agent answers"),
        Row("--for soon --why firmware --state-dir {state}", 2, "'soon' is not a duration"),
        Row("--for 10m --state-dir {state}", 2, "Missing option '--why'"),
    ),
    "driver resume": (
        Row("--state-dir {state}", says="The driver"),
        Row("--state-dir {state} --json"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("now", 2, "unexpected extra argument"),
    ),
    "health drain": (
        Row("3 --for 2h --why fan --state-dir {state}", says="is drained for 2 h: fan", after=RESTORE),
        Row("3 --for 2h --why fan --state-dir {state} --json", after=RESTORE),
        Row("77 --why fan --state-dir {state}", 1, "there is no device '77'"),
        Row("3 --why fan --state-dir {here}/none", 1, "no agent answers"),
        Row("3 --state-dir {state}", 2, "Missing option '--why'"),
    ),
    "health reference": (
        Row("", says="| ", verbatim=True),
        Row("now", 2, "unexpected extra argument"),
    ),
    "health restore": (
        Row("3 --state-dir {state}", says="is healthy."),
        Row("3 --state-dir {state} --json"),
        Row("7 --state-dir {state}", 1, "is not healthy: the driver still reports", once=True),
        Row("7 --state-dir {state} --json", 1, "is not healthy", answers=True, once=True),
        Row("77 --state-dir {state}", 1, "there is no device '77'"),
        Row("3 --state-dir {here}/none", 1, "no agent answers"),
        Row("", 2, "Missing argument"),
    ),
    "inspect": (
        Row("--state-dir {state}", says="nvidia.com/gpu"),
        Row("--state-dir {state} --json"),
        Row("health --state-dir {state}", says="healthy"),
        Row("health --state-dir {state} --json"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("--state-dir {closed}", 1, "closed"),
        Row("helth --state-dir {state}", 2, "Did you mean 'health'?"),
    ),
    "claims": (
        Row("--state-dir {state}", says="No claim has a device of this node.", nothing=True),
        Row("--state-dir {state} --json"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("now", 2, "unexpected extra argument"),
    ),
    "simulate": (
        Row("--nodes {nodes} --pods {pods} --policy fgd,waste-price --seeds 1-3 --processes 1 --fewer", says="fgd"),
        Row(
            "--nodes {nodes} --pods {pods} --seeds 1,2 --processes 1 --departures --queue fifo",
            says="waste-price",
            once=True,
        ),
        Row("--nodes {nodes} --pods {pods} --seeds 1 --json", once=True),
        Row("--file {cluster} --seeds 1 --processes 1 --policy fgd,waste-price:1+spread:0.1", says="fgd"),
        Row("--file {cluster} --from-cluster", 2, "give --nodes and --pods, or --from-cluster, or --file"),
        Row("--nodes {nodes} --pods {pods} --policy fgd:0", 2, "a weight is a number above 0"),
        Row("--nodes {nodes} --pods {nodes} --seeds 1", 1, "nodes.csv: line 1 has no column name, num_gpu, gpu_milli"),
        Row("--nodes {here}/none.csv --pods {pods}", 1, "none.csv: No such file or directory"),
        Row("--nodes {nodes} --pods {closed}/secret.yaml --seeds 1", 1, "secret.yaml"),
        Row("--nodes {nodes} --pods {pods} --plot {here}/none/p.svg", 1, "p.svg: its directory is not there"),
        Row("--nodes {nodes} --pods {pods} --csv {here}", 1, "it is a directory, and must be a regular file"),
        Row("--nodes {nodes} --pods {pods} --plot {here}/p.jpg", 2, "has to end in .png or .svg"),
        Row("--nodes {nodes} --pods {pods} --policy waste-prise", 2, "Did you mean 'waste-price'?"),
        Row("--nodes {nodes} --pods {pods} --seeds 1-", 2, "is not a seed"),
        Row("--nodes {nodes} --pods {pods} --fewer", 2, "--fewer needs two policies"),
        Row("--nodes {nodes} --pods {pods} --queue fifo", 2, "needs --departures"),
        Row("--nodes {nodes}", 2, "give --nodes and --pods, or --from-cluster, or --file"),
    ),
    "slices": (
        Row("--machine {machine}", says="gpu-"),
        Row("--machine dgx-a100 --node-name n1", says="gpu-a1000000-0000-4000-8000-000000000000"),
        Row("--machine {machine} --json"),
        Row("--machine {machine} -o yaml --node-name n1", verbatim=True, says="kind: ResourceSlice"),
        Row("--machine {machine} -o json", verbatim=True, says="resource.k8s.io/v1"),
        Row("--machine {machine} --config {config}", says="gpu-"),
        Row("--state-dir {state}", 1, "runs without --node-name"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("--machine nvml --driver-root-ctr-path {here}", 1, "the slices are not known yet"),
        Row("--machine {machine} --config {wrong}/config.yaml", 1, "config.yaml:2: "),
        Row("--machine {here}/none.yaml", 1, "none.yaml: No such file or directory"),
        Row("--machine {machine} -o yaml --json", 2, "two documents"),
        Row("--node-name n1", 2, "need --machine"),
        Row("--machine dgx-a100 -o xml", 2, "'xml' is not one of"),
    ),
    "labels": (
        Row("--machine {machine}", says="nvidia.com/gpu.count"),
        Row("--machine workstation", says="gpuplane.io/gpu.NVIDIA-RTX-6000-Ada-Generation.count"),
        Row("--machine {machine} --json"),
        Row("--machine {machine} --config {config}", says="nvidia.com/gpu.product"),
        Row("--state-dir {state}", says="nvidia.com/gpu.count"),
        Row("--state-dir {state} --json"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("--machine nvml --driver-root-ctr-path {here}", 1, "the labels are not known yet"),
        Row("--machine {machine} --config {wrong}/config.yaml", 1, "config.yaml:2: "),
        Row("--machine {machine} --config {closed}/secret.yaml", 1, "secret.yaml"),
        Row("--machine {here}/none.yaml", 1, "none.yaml: No such file or directory"),
        Row("--machine dgx-a10", 2, "did you mean dgx-a100"),
        Row("--config {config}", 2, "--config needs --machine"),
    ),
    "mig apply": (
        Row("-f {layouts} -c off --machine dgx-a100", says="off is applied to GPU 0, 1"),
        Row("-f {layouts} -c off --machine dgx-a100 --json"),
        Row("-f {layouts} -c seven --machine dgx-a100 --dry-run", says="create GPU instance 1g.10gb"),
        Row("-f {layouts} -c wrong --machine dgx-a100", 1, "no profile 1g.99gb"),
        Row("-f {layouts} -c wrong --machine dgx-a100 --json", 1, answers=True),
        Row("-f {layouts} -c off --state-dir {state}", says="there is nothing to do", after=WITHDRAW),
        Row("-f {layouts} -c off --wait 3", 2, "'3' is not a duration"),
    ),
    "mig assert": (
        Row("-f {layouts} -c off --machine dgx-a100", says="8 GPUs have the layout of off"),
        Row("-f {layouts} -c off --machine dgx-a100 --json"),
        Row("-f {layouts} -c seven --machine dgx-a100", 1, "MIG mode is off, not on", answers=True),
        Row("-f {layouts} -c seven --machine dgx-a100 --json", 1, answers=True),
        Row("-f {layouts} -c seven --valid-config", says="the configuration seven is valid"),
        Row("-f {layouts} -c sevn --valid-config", 1, "there is no configuration 'sevn'"),
        Row("-f {config} -c seven --machine t4", 1, "there is no configuration 'seven'"),
        Row("-f {layouts} -c off --state-dir {state}", says="8 GPUs have the layout of off"),
        Row("", 2, "--config-file"),
        Row("-c seven --valid-config", 2, "--config-file"),
    ),
    "mig checkpoint": (
        Row("-f {fresh}/saved.json --machine dgx-a100", says="the partitions are saved"),
        Row("-f - --machine dgx-a100", verbatim=True, says="MigState"),
        Row("-f {machine}/saved.json --machine dgx-a100", 1, "machine.yaml/saved.json: its directory is not there"),
        Row("-f {here} --machine dgx-a100", 1, "it is a directory, and must be a regular file"),
        Row("", 2, "--checkpoint-file"),
    ),
    "mig explain": (
        Row("3g.40gb 1g.10gb", says="A100 80GB: yes: 1g.10gb at 0, 3g.40gb at 4; there is room for"),
        Row("3g.40gb 1g.10gb --json"),
        Row("4g.40gb 7g.80gb", 1, "A100 80GB: no: ", answers=True),
        Row("4g.40gb 7g.80gb --json", 1, answers=True),
        Row("1g5gb", 2, "did you mean"),
    ),
    "mig export": (
        Row("--machine dgx-a100", says="mig-enabled: false", verbatim=True),
        Row("--state-dir {state} -o json", says="mig-enabled", verbatim=True),
        Row("--machine {here}/none.yaml", 1, "none.yaml: No such file or directory"),
        Row("-o jsn", 2, "Did you mean 'json'?"),
    ),
    "mig generate-config": (
        Row("--machine dgx-a100", says="all-balanced:", verbatim=True),
        Row("--machine dgx-a100 -f {fresh}/made.yaml", says="made.yaml: 10 configurations"),
        Row("--machine dgx-a100 -f {here}/none/made.yaml", 1, "made.yaml: its directory is not there"),
        Row("--machine t4", 1, "no GPU of this machine can be partitioned"),
        Row("--machine dgx-a100 -o jsn", 2, "Did you mean 'json'?"),
    ),
    "mig plan": (
        Row("-f {layouts} -c seven --machine dgx-a100", says="switch MIG mode on"),
        Row("-f {layouts} -c seven --machine dgx-a100 --json"),
        Row("-f {layouts} -c wrong --machine dgx-a100", 1, "no profile 1g.99gb", answers=True),
        Row("-c all-balanced --machine dgx-a100", says="create GPU instance 3g.40gb"),
        Row("", 2, "--config-file"),
    ),
    "mig restore": (
        Row("-f {saved} --machine dgx-a100", says="there is nothing to do"),
        Row("-f {saved} --machine dgx-a100 --json"),
        Row("-f {layouts} --machine dgx-a100", 1, "layouts.yaml:1: "),
        Row("", 2, "--checkpoint-file"),
    ),
    "mig withdraw": (
        Row("--state-dir {state}", says="nothing was requested"),
        Row("--state-dir {state} --json"),
        Row("--state-dir {here}/none", 1, "no agent answers"),
        Row("now", 2, "unexpected extra argument"),
    ),
    "mps": (
        Row("--root {fresh}/mps", until="no compute mode can be set", verbatim=True),
        Row("--root {here}/mps", until="no compute mode can be set", nobody=1, verbatim=True),
        Row("--root {closed}/mps", until="no compute mode can be set", nobody=1, verbatim=True),
        Row("--root {machine}/mps", until="the supervisor cannot manage daemons below", verbatim=True),
        Row("--shm hots", 2, "Did you mean 'host'?"),
    ),
    "placement explain": (
        Row("--file {cluster}", says="team/big"),
        Row("--file {cluster} --json"),
        Row("team/a1 --file {cluster}", says="team/a1"),
        Row("team/a1 --node n1 --file {cluster}", says="n1/0"),
        Row("team/a1 --node none --file {cluster}", 1, "there is no node 'none'"),
        Row("team/none --file {cluster}", 1, "'team/none' is neither running nor waiting"),
        Row("--file {here}/none.json", 1, "none.json has no nodes"),
        Row("--file {small}", 1, "is not what `kubectl get nodes,pods,pdb"),
        Row("--kubeconfig {here}/nothing", 1, "nothing"),
        Row("--fiel {cluster}", 2, "Did you mean one of"),
    ),
    "placement plan": (
        Row("--file {cluster}", says="team/b1"),
        Row("--file {cluster} --json --moves 1"),
        Row("--file {cluster} --moves 100% --config {here}/placement.yaml"),
        Row("--file {cluster} --config {wrong}/placement.yaml", 1, "placement.yaml:1: policy: 'best' is no policy"),
        Row("--file {cluster} --moves 0", 2, "'0' is neither a number"),
        Row("--file {closed}/cluster.json", 1, "cluster.json"),
    ),
    "runtime configure": (
        Row("--runtime containerd --config {runtime} --runtime-version 1.7.24 --state-dir {fresh}/s --dry-run"),
        Row("--runtime cri-o --config {here}/crio.conf --runtime-version 1.31.0 --state-dir {fresh}/s --check"),
        Row("--runtime containerd --config {runtime} --runtime-version 1.7.24 --state-dir {fresh}/s --dry-run --json"),
        Row(
            "--runtime containerd --config {runtime} --runtime-version 1.7.24 --state-dir {fresh}/s --check",
            1,
            answers=True,
        ),
        Row("--runtime containerd --config {here}/none.toml --runtime-version x --state-dir {fresh}/s", 1, "Error: "),
        Row("--runtime containerd --state-dir {fresh}/s --undo", says="Nothing to do"),
        Row("--runtime containerd --undo --check", 2, "--undo and --check"),
        Row("--runtime contanerd", 2, "Did you mean 'containerd'?"),
        Row("--runtime docker --set-as-default", 2, "--set-as-default"),
    ),
    "sandbox fetch": (
        Row("--directory {programs}", says="kube-apiserver", verbatim=True),
        Row("--directory {programs} --json"),
        Row("--directory {here} --mirror http://127.0.0.1:9", 1, "is not empty"),
        Row("--arch amd46", 2, "Did you mean 'amd64'?"),
        Row("--version 1.36", 2, "'1.36' is no version"),
        Row("--mirror dl.k8s.io", 2, "is no address of a site"),
    ),
    "sandbox kubelet": (
        Row("--root {fresh}/k", says="kubelet has stopped", typed="help\nls\n"),
        Row("--root {fresh}/k --json", says="stopped"),
        Row("--root {fresh}/k", says="pod default/a does not run here", typed="show a\n"),
        Row("--root {fresh}/k --no-input", until="kubelet serves"),
        Row("--root {machine}/k", 1, "machine.yaml"),
        Row("--roof {fresh}", 2, "Did you mean '--root'?"),
    ),
    "sandbox up": (  # that it succeeds shows tests/cluster/sandbox, where the programs are
        Row("--control-plane {here}/none --json", 1, "is no directory"),
        Row("--nodes hgx-h10", 1, "did you mean hgx-h100"),
        Row("--nodes {here}/none.yaml", 1, "none.yaml: No such file or directory"),
        Row("--nodes ,", 1, "write MACHINE or COUNT×MACHINE"),
        Row("--node t4", 2, "Did you mean '--nodes'?"),
    ),
    "sandbox status": (
        Row("--state-dir {fresh}", 1, "no cluster runs in"),
        Row("--state-dir {fresh}/none --json", 1, "no cluster runs in"),
        Row("--state-dur {fresh}", 2, "Did you mean '--state-dir'?"),
    ),
    "sandbox down": (
        Row("--state-dir {fresh}", says="no cluster runs in"),
        Row("--state-dir {machine}/s", 1, "machine.yaml"),
        Row("down", 2, "unexpected extra argument"),
    ),
}
