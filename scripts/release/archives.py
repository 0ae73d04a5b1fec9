"""Writes archives that are the same byte for byte: sorted, of nobody in particular, and with one time for all files."""

import gzip
import io
import pathlib
import tarfile


def entries(directory):
    """Paths below a directory, in one order everywhere: a directory before what is in it."""
    return sorted(directory.rglob("*"), key=lambda path: path.relative_to(directory).parts)


def pack(directory, output, name, epoch, first=()):
    """Writes a directory as NAME/… into a .tar.gz; `first` names files that readers want to find early."""
    directory = pathlib.Path(directory)
    every = entries(directory)
    every.sort(key=lambda path: str(path.relative_to(directory)) not in first)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in [directory, *every]:
            inner = path.relative_to(directory)
            info = tarfile.TarInfo(str(pathlib.PurePosixPath(name, inner)))
            info.mtime = epoch
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise SystemExit(f"error: {path} is neither a file nor a directory")
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            data = path.read_bytes()
            info.size = len(data)
            info.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(info, io.BytesIO(data))
    with open(output, "wb") as file:
        file.write(gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0))


def chart(directory, output_directory, epoch):
    """Packs a Helm chart as `helm package` names it and returns the file."""
    directory = pathlib.Path(directory)
    said = dict(line.split(": ", 1) for line in (directory / "Chart.yaml").read_text().splitlines() if ": " in line)
    output = pathlib.Path(output_directory) / f"{said['name']}-{said['version']}.tgz"
    pack(directory, output, said["name"], epoch, first=("Chart.yaml",))
    return output
