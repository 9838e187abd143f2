"""Stand-ins for NVIDIA's programs: what they prove is our supervision, and nothing about CUDA.

`nvidia-cuda-mps-control` speaks the control commands that we use, becomes a daemon, writes its pid file, refuses to run
twice on one pipe directory, and starts a server for its first client. A client is a process that stays connected. As
NVIDIA's, a server lives on when its control daemon is killed, and limits are those of the daemon that was told them.
`nvidia-smi` keeps compute modes in a file. A file `broken` beside them makes both fail with what it says; a file `slow`
makes them hang, and a file `delay` holds up the start of a daemon; where there is a file `bare`
servers do not inherit our mark. They import little: a test starts them a hundred times.
"""

import sys
from pathlib import Path

COMMON = """
import os, sys, time, fcntl, signal, select
from _socket import AF_UNIX, socket
HERE = os.path.dirname(os.path.abspath(sys.argv[0]))
NAME = os.path.basename(sys.argv[0])
def without_mark():
    bare = os.path.exists(HERE + "/bare")
    return {name: value for name, value in os.environ.items() if not (bare and name == "GPUPLANE_MPS_MARK")}
def asked_to_wait(moment):
    for seconds in range(600):
        if not os.path.exists(HERE + "/delay") or open(HERE + "/delay").read() != moment:
            return
        open(HERE + "/reached", "w").close()
        time.sleep(0.1)
def asked_to_fail():
    if os.path.exists(HERE + "/slow." + NAME):
        time.sleep(3600)
    if os.path.exists(HERE + "/broken." + NAME):
        sys.exit(open(HERE + "/broken." + NAME).read())
def read_line(s):
    line = b""
    while not line.endswith(b"\\n") and (more := s.recv(1)):
        line += more
    return line.decode()
def as_json(texts):
    return "{%s}" % ", ".join('"%s": "%s"' % each for each in texts.items())
"""

CONTROL = """
PIPE, LOG = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]

def main():
    asked_to_fail()
    if "-d" in sys.argv:
        daemonise()
    else:
        for command in sys.stdin.read().splitlines():
            s = socket(AF_UNIX)
            s.settimeout(5)
            os.chdir(PIPE)
            try:
                s.connect("control")
            except OSError:
                sys.exit("Cannot find MPS control daemon process")
            s.sendall(b"UI " + command.encode() + b"\\n")
            while more := s.recv(4096):
                sys.stdout.write(more.decode())

def daemonise():
    os.chdir(PIPE)
    lock = os.open("control_lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("An instance of this daemon is already running")
    for name in ("control", "control_privileged"):
        if os.path.exists(name):
            os.unlink(name)
    listening = socket(AF_UNIX)
    listening.bind("control")
    listening.listen(64)
    asked_to_wait("before it is ready")
    if os.fork():
        asked_to_wait("after it is ready")
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    with open("nvidia-cuda-mps-control.pid", "w") as f:
        f.write(str(os.getpid()))
    with open(LOG + "/control.log", "a") as f:
        f.write("Starting control daemon using socket %s/control\\n" % PIPE)
    Daemon(listening).run()

class Daemon:
    def __init__(self, listening):
        self.listening, self.clients, self.server = listening, {}, None
        self.share, self.limits, self.servers_told = "100.0", {}, {}
    def run(self):
        while True:
            ready, _, _ = select.select([self.listening, *self.clients], [], [])
            for each in ready:
                if each is self.listening:
                    self.accept()
                else:
                    if not each.recv(100):
                        self.clients.pop(each)
                        each.close()
    def accept(self):
        s = socket(AF_UNIX, fileno=self.listening._accept()[0])
        line = read_line(s)
        kind, _, rest = line.strip().partition(" ")
        if kind == "CLIENT":
            if self.server is None:
                self.server = os.posix_spawn(
                    sys.executable, [sys.executable, "-ISs", HERE + "/nvidia-cuda-mps-server"], without_mark(),
                    file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)])
            self.clients[s] = int(rest)
            s.sendall(as_json(self.limits).encode() + b"\\n")
        else:
            answer = self.answer(rest.split())
            try:
                s.sendall(answer.encode())
            except OSError:
                pass
            s.close()
            if rest == "quit":
                os.unlink("nvidia-cuda-mps-control.pid")
                os._exit(0)
    def answer(self, words):
        with open(LOG + "/control.log", "a") as f:
            f.write("Cmd:%s\\n" % " ".join(words))
        match words:
            case ["get_server_list"]:
                return "%d\\n" % self.server if self.server else ""
            case ["get_client_list", server]:
                return "".join("%d\\n" % pid for pid in self.clients.values())
            case ["get_default_active_thread_percentage"]:
                return self.share + "\\n"
            case ["set_default_active_thread_percentage", share]:
                self.share = str(float(share))
                return ""
            case ["set_default_device_pinned_mem_limit", device, limit]:
                self.limits[device] = limit
                return ""
            case ["get_default_device_pinned_mem_limit", device]:
                return self.limits.get(device, "") + "\\n"
            case ["set_active_thread_percentage", server, share]:
                self.servers_told["share"] = share
                return ""
            case ["set_device_pinned_mem_limit", server, device, limit]:
                self.servers_told[device] = limit
                return ""
            case ["quit"]:
                if self.clients:
                    time.sleep(3600)  # as theirs does without -t
                if self.server:
                    os.kill(self.server, signal.SIGKILL)
                    os.waitpid(self.server, 0)
                return ""
        return "Unrecognized command\\n"
main()
"""

SERVER = """
while True:
    signal.pause()
"""

CLIENT = """
s = socket(AF_UNIX)
os.chdir(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
try:
    s.connect("control")
    s.sendall(b"CLIENT %d\\n" % os.getpid())
    answer = read_line(s)
except OSError:
    answer = ""
print(answer, end="", flush=True)  # nothing where there is no daemon: a CUDA program would go on without MPS
while answer:
    time.sleep(3600)
"""

SMI = """
asked_to_fail()
PATH = HERE + "/modes.json"
modes = eval(open(PATH).read()) if os.path.exists(PATH) else {}
gpu = sys.argv[sys.argv.index("-i") + 1]
with open(HERE + "/smi.log", "a") as f:
    f.write(" ".join(sys.argv[1:]) + "\\n")
if "-c" in sys.argv:
    modes[gpu] = sys.argv[sys.argv.index("-c") + 1]
    with open(PATH + ".new", "w") as f:
        f.write(as_json(modes))
    os.replace(PATH + ".new", PATH)
    print("Set compute mode to %s for GPU %s." % (modes[gpu], gpu))
else:
    print(modes.get(gpu, "DEFAULT").title())
"""


def make(folder: Path) -> Path:
    """The programs, in a folder that is made."""
    folder.mkdir(parents=True)
    for name, text in {
        "nvidia-cuda-mps-control": CONTROL,
        "nvidia-cuda-mps-server": SERVER,
        "nvidia-smi": SMI,
        "client": CLIENT,
    }.items():
        path = folder / name
        path.write_text(f"#!{sys.executable} -ISs\n{COMMON}{text}")
        path.chmod(0o755)
    return folder
