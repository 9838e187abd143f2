"""The files of a Secret as kubelet mounts them: links into a directory that is swapped as a whole."""

from datetime import UTC, datetime
from pathlib import Path

from gpuplane.service.servingoptions import CertificateFiles

PEMS = Path(__file__).parent / "certificates"

EXPIRY = {  # as `openssl x509 -enddate` says it
    "first": datetime(2046, 1, 25, 3, 3, 47, tzinfo=UTC).timestamp(),
    "second": datetime(2126, 11, 2, 3, 3, 47, tzinfo=UTC).timestamp(),
}


class Secret:
    """`tls.crt` and `tls.key` in a directory, by `..data`."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._count = directory, 0
        self.files = CertificateFiles(directory / "tls.crt", directory / "tls.key")
        self.swap(name)
        for each in (self.files.certificate, self.files.private_key):
            each.symlink_to(f"..data/{each.name}")

    def swap(self, name: str) -> None:
        """Another pair is in the files, at once."""
        self.link(PEMS / f"{name}.crt", PEMS / f"{name}.key")

    def link(self, certificate: Path, private_key: Path) -> None:
        """Other files are there, at once."""
        self._count += 1
        folder = self._directory / f"..{self._count}"
        folder.mkdir(parents=True)
        (folder / "tls.crt").symlink_to(certificate)
        (folder / "tls.key").symlink_to(private_key)
        new = self._directory / "..data_tmp"
        new.symlink_to(folder.name)
        new.replace(self._directory / "..data")
