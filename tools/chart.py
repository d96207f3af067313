"""Packs the Helm chart as `helm package` does, but the same bytes each time and without Helm."""

import gzip
import io
import re
import tarfile
from pathlib import Path


class ChartVersionError(Exception):
    """The chart says another version than the project."""


def pack(chart: Path, target: Path, *, version: str, epoch: int) -> None:
    """Write a gzip tar of `chart`, in a folder of its name, with `epoch` as every file's time."""
    description = chart / "Chart.yaml"
    stated = re.findall(r"^(?:version|appVersion): (.+)$", description.read_text(), re.MULTILINE)
    if stated != [version, version]:
        raise ChartVersionError(
            f"{description}: version and appVersion are {' and '.join(stated)}, the project's is "
            f"{version}: python -m tools.version {version}"
        )
    paths = sorted(path for path in chart.rglob("*") if path.is_file() and path != description)
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in (description, *paths):  # Helm writes and expects it first
            body = path.read_bytes()
            member = tarfile.TarInfo(f"{chart.name}/{path.relative_to(chart).as_posix()}")
            member.size, member.mtime = len(body), epoch
            archive.addfile(member, io.BytesIO(body))
