"""Where the official releases of the programs are, and which bytes they have to be.

- Kubernetes: https://dl.k8s.io/release/vVERSION/bin/linux/ARCHITECTURE/NAME, and beside it NAME.sha256.
- etcd: https://github.com/etcd-io/etcd/releases/download/vVERSION/etcd-vVERSION-linux-ARCHITECTURE.tar.gz, and beside
  it SHA256SUMS.

The checksums of the version that this program is tested with stand here, so that no server has to be believed; they are
those of kops (pkg/assets/assetdata/k8s-1.36.yaml). A mirror has the same paths below its own address.
"""

from typing import NamedTuple

from gpuplane.sandbox.controlplane.programs import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER

KUBERNETES_VERSION, ETCD_VERSION = "1.36.2", "3.5.30"
KUBERNETES_SITE, ETCD_SITE = "https://dl.k8s.io", "https://github.com"
MAX_PROGRAM_BYTES, MAX_ARCHIVE_BYTES = 400 << 20, 200 << 20
ELF_MACHINES = {"amd64": 62, "arm64": 183}
"""Architecture → e_machine of its programs (elf(5))."""

CHECKSUMS = {
    ("amd64", API_SERVER): "6770be17296ef36b656ad84e52b043007fb9a47ba0445c224097323291b1b33b",
    ("amd64", CONTROLLER_MANAGER): "6332e45474baf6362f50394d8f7c6002274db04d68fe51dbe2229ef5c0b21e3c",
    ("amd64", SCHEDULER): "0cc42da3170baf459a534a3802640d7374381ca679e5cfb647e64f36ad318d3d",
    ("arm64", API_SERVER): "265e3918c0659ce714fba07b6cc0634edafa4db6dd5891cc8dc3352b028af0f5",
    ("arm64", CONTROLLER_MANAGER): "976242c5e71e4c0d2cc925ca34e715112cd3379ef7c4292c661546073790ce56",
    ("arm64", SCHEDULER): "ec4166220b3825ea28679fb2604d9fa04c817226b4205db10985444608bfdcea",
}
"""SHA-256 of `KUBERNETES_VERSION`."""


class Download(NamedTuple):
    """One program. `checksum`: SHA-256 of what is downloaded; "" where `checksums_url` says it. `member`: the program
    in an archive; "" where it is what is downloaded."""

    name: str
    url: str
    checksum: str
    checksums_url: str
    member: str
    max_bytes: int

    @property
    def file_name(self) -> str:
        """Of what is downloaded."""
        return self.url.rpartition("/")[2]


def downloads(version: str, architecture: str, mirror: str = "") -> list[Download]:
    """All programs of a version of Kubernetes. `mirror`: the address of another site, with both sites' paths."""
    site = mirror.rstrip("/")
    folder = f"{site or KUBERNETES_SITE}/release/v{version}/bin/linux/{architecture}"
    etcd = f"etcd-v{ETCD_VERSION}-linux-{architecture}"
    etcd_folder = f"{site or ETCD_SITE}/etcd-io/etcd/releases/download/v{ETCD_VERSION}"
    known = CHECKSUMS if version == KUBERNETES_VERSION else {}
    return [
        Download(
            ETCD, f"{etcd_folder}/{etcd}.tar.gz", "", f"{etcd_folder}/SHA256SUMS", f"{etcd}/{ETCD}", MAX_ARCHIVE_BYTES
        ),
        *(
            Download(
                name,
                f"{folder}/{name}",
                known.get((architecture, name), ""),
                f"{folder}/{name}.sha256",
                "",
                MAX_PROGRAM_BYTES,
            )
            for name in (API_SERVER, CONTROLLER_MANAGER, SCHEDULER)
        ),
    ]
