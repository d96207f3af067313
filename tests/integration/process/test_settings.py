"""Variables of the environment as the processes read them: each wrong one is named."""

from pathlib import Path

import pytest

from tests.support.broker.fixtures import free_port_base, start_broker
from tests.support.broker.refused_start import refusal_to_start, run_server

pytestmark = pytest.mark.integration

# What Kubernetes sets in every pod of a namespace with Services `tailrace` and `tailrace-metrics`.
SERVICE_LINKS = {
    "service_host": "10.96.0.7",
    "service_port": "9250",
    "service_port_http": "9250",
    "port": "tcp://10.96.0.7:9250",
    "port_9250_tcp": "tcp://10.96.0.7:9250",
    "port_9250_tcp_proto": "tcp",
    "port_9250_tcp_port": "9250",
    "port_9250_tcp_addr": "10.96.0.7",
    "metrics_service_host": "10.96.0.8",
    "metrics_service_port": "9253",
    "metrics_port": "tcp://10.96.0.8:9253",
    "metrics_port_9253_tcp": "tcp://10.96.0.8:9253",
    "metrics_port_9253_tcp_addr": "10.96.0.8",
}


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "SEGMENT_BYTE",
            "1048576",
            "TAILRACE_SEGMENT_BYTE is no setting of a broker; did you mean TAILRACE_SEGMENT_BYTES? "
            "All are in docs/settings.md",
        ),
        ("PORT", "http", 'TAILRACE_PORT is "http": give a whole number from 1 to 65532'),
        ("IDLE_SECONDS", "soon", 'TAILRACE_IDLE_SECONDS is "soon": give a number above 0'),
        (
            "RING_SECRET",
            "two words",
            "TAILRACE_RING_SECRET has a space or another character than visible ASCII; make one "
            "with openssl rand -base64 32",
        ),
        ("ORDINAL", "1", "TAILRACE_ORDINAL is above 0, but TAILRACE_PEER_HOST is not set"),
    ],
)
def test_a_wrong_variable_is_one_sentence_with_its_value_and_what_is_allowed(
    tmp_path: Path, name: str, value: str, sentence: str
) -> None:
    line = refusal_to_start(
        **{"data_dir": tmp_path / "data", "port": free_port_base(), name.lower(): value}
    )

    assert line == f"error: {sentence}\n"
    assert not (tmp_path / "data").exists()


def test_every_wrong_variable_has_its_own_line() -> None:
    ended = run_server(
        "tailrace_broker", {"TAILRACE_PRT": "1", "TAILRACE_HOSST": "h", "TAILRACE_IO_THREADS": "0"}
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines() == [
        "error: TAILRACE_HOSST is no setting of a broker; did you mean TAILRACE_HOST? "
        "All are in docs/settings.md",
        "error: TAILRACE_PRT is no setting of a broker; did you mean TAILRACE_PORT? "
        "All are in docs/settings.md",
        "error: TAILRACE_DATA_DIR is not set",
        'error: TAILRACE_IO_THREADS is "0": give a whole number from 1 to 64',
    ]


def test_a_clients_variables_and_an_operators_are_no_mistake_of_a_broker(tmp_path: Path) -> None:
    others = {
        "url": "http://127.0.0.1:9250",
        "token": "secret",
        "ca_file": "ca.pem",
        "operator_namespaces": "events",
    }
    with start_broker(tmp_path, **others) as broker:
        assert broker.is_running()


def test_a_broker_starts_beside_services_whose_names_begin_like_its_settings(
    tmp_path: Path,
) -> None:
    with start_broker(
        tmp_path, **{"operator_service_host": "10.96.0.9", **SERVICE_LINKS}
    ) as broker:
        assert broker.is_running()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (
            {"RESYNC_SECOND": "5"},
            "TAILRACE_OPERATOR_RESYNC_SECOND is no setting of the operator; did you mean "
            "TAILRACE_OPERATOR_RESYNC_SECONDS? All are in docs/operator.md",
        ),
        (
            {"HTTP_PORT": "http"},
            'TAILRACE_OPERATOR_HTTP_PORT is "http": give a whole number from 1 to 65535',
        ),
        (
            {"LEASE_SECONDS": "1"},
            'TAILRACE_OPERATOR_LEASE_SECONDS is "1": give a number of 3 or more',
        ),
        (
            {"BROKER_URL": "http://events:9250"},
            'TAILRACE_OPERATOR_BROKER_URL is "http://events:9250", which has no {ordinal}, so that '
            "all brokers would have one address",
        ),
        (
            {"PORT": "tcp://10.96.0.9:8080", "SERVICE_HOST": "10.96.0.9", "LOG_LEVEL": "loud"},
            'TAILRACE_OPERATOR_LOG_LEVEL is "loud": give debug, info, warning or error',
        ),
    ],
)
def test_a_wrong_variable_of_the_operator_is_one_sentence(
    variables: dict[str, str], sentence: str
) -> None:
    ended = run_server(
        "tailrace_operator",
        {f"TAILRACE_OPERATOR_{name}": value for name, value in variables.items()},
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"error: {sentence}\n"
