"""The file `damage` beside a partition's segments. Blocks; runs in an I/O thread.

The proof of damage may be gone at the next start: the journal goes on, and clean-stop.json is used
once. So damage is recorded before anything else is written.
"""

from pathlib import Path

from tailrace.wire import DAMAGE_FILE
from tailrace_broker.codec.damage import decode_damage, encode_damage
from tailrace_broker.model.damage import Accepted, Loss, RecordedDamage
from tailrace_broker.model.errors import (
    CorruptBatchError,
    CorruptMetadataError,
    ReadFailedError,
)
from tailrace_broker.storage.files.direct_file import (
    sync_directory,
    translated_errors,
    write_file_atomically,
)


def load_damage(directory: Path) -> RecordedDamage:
    """Read the file, which most partitions do not have. CorruptMetadataError, ReadFailedError."""
    path = directory / DAMAGE_FILE
    with translated_errors(path, ReadFailedError):
        if not path.exists():
            return RecordedDamage()
        stored = path.read_bytes()
    try:
        return decode_damage(stored)
    except CorruptBatchError as error:
        raise CorruptMetadataError(f"{error}; restore the file from a copy") from error


def accepted_losses(directory: Path) -> Accepted:
    """Offsets that the file says are lost, as was accepted. Raises as `load_damage`."""
    return [each[:2] for each in load_damage(directory).losses if each.accepted_us > 0]


def record_loss(directory: Path, loss: Loss) -> None:
    """Add a loss to the file. Raises as `load_damage` and `save_damage`."""
    save_damage(directory, load_damage(directory).with_loss(loss))


def save_damage(directory: Path, known: RecordedDamage) -> None:
    """Write the file, durably. DiskFullError, StorageFailedError."""
    with translated_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
        sync_directory(directory.parent)
        sync_directory(directory.parent.parent)
    write_file_atomically(directory / DAMAGE_FILE, encode_damage(known))
