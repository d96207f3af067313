import resource

from tailrace_broker.app.open_files import RESERVED_FILES, connections_max, raise_limit


def test_the_limit_becomes_the_hard_one() -> None:
    assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_connections_leave_files_for_segments() -> None:
    assert connections_max(8192, RESERVED_FILES + 100) == 100
    assert connections_max(8192, RESERVED_FILES + 100_000) == 8192
    assert connections_max(8192, 10) == 1
    assert connections_max(8192, resource.RLIM_INFINITY) == 8192
