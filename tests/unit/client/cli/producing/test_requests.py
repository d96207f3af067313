"""What a --resume token says of the topic and the options of its run."""

import pytest

from tailrace.cli.producing.form import Form
from tailrace.cli.producing.requests import Target

OPTIONS = Form(
    key=b"k\xff",
    key_path=("a", "ü"),
    separator=b"\t",
    headers=((b"trace", b"7"), (b"t\xc3\xbc", b"")),
    timestamp_us=1,
    is_lines=False,
)


@pytest.mark.parametrize(("form", "checksum"), [(Form(), 0x2F547B6E), (OPTIONS, 0x12D46DE4)])
def test_a_token_of_another_version_fits_the_same_options(form: Form, checksum: int) -> None:
    assert Target("orders", form).checksum == checksum


def test_a_token_fits_no_other_topic_or_options() -> None:
    forms = [Form(), *(Form(**{name: value}) for name, value in OPTIONS._asdict().items())]
    targets = [Target("orders", form) for form in forms] + [Target("flights", Form())]

    assert len({target.checksum for target in targets}) == len(targets)
