"""How clients outside of the cluster reach single brokers: `spec.listeners`."""

from typing import Annotated, Literal

from pydantic import Field

from tailrace_operator.api.fields import Fields, Rule, Text, ruled
from tailrace_operator.api.forms import HOST, Annotations, Name
from tailrace_operator.api.pod import NO_ANNOTATIONS_OF_OURS

ORDINAL_PLACE = "{ordinal}"
PUBLIC_PORT = 9250
_OF_INGRESS = "!has(self.{0}) || self.type == 'Ingress'"


class Listeners(Fields):
    """An address outside of the cluster for each broker. Without it all share that of
    `spec.service`, which suffices: every broker serves everything."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer", "Ingress"] = "ClusterIP"
    """The type of each broker's Service; with `Ingress` each has a host of one Ingress, with
    `ClusterIP` a gateway of your own leads to them."""

    host: Annotated[
        str,
        Field(max_length=253),
        Text(
            HOST.replace("[a-z0-9]", "([a-z0-9]|[{]ordinal[}])").replace(
                "[-a-z0-9]", "([-a-z0-9]|[{]ordinal[}])"
            ),
            "not a host name, with {ordinal} in place of a broker's number",
        ),
    ]
    """Where clients reach each broker, `{ordinal}` in place of its number, as in
    `events-{ordinal}.example.com`; of node ports a name of a node."""

    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """Where they reach it; else 9250, of an Ingress 80, or 443 with TLS, of node ports these."""

    node_port: Annotated[int, Field(ge=1, le=53_247)] | None = None
    """The node port of broker 0; each next broker has the next one."""

    bootstrap_host: (
        Annotated[
            str,
            Field(max_length=253),
            Text(HOST, "not a host name: lowercase letters, digits, hyphens and dots"),
        ]
        | None
    ) = None
    """Where they reach any broker: of `spec.service`, or a host of the Ingress."""

    annotations: Annotations = {}
    """Annotations of these Services, or of the Ingress, with `{ordinal}` as above."""

    ingress_class_name: Name | None = None
    """Which controller serves the Ingress; the cluster's default when it is not given."""

    tls_secret_name: Name | None = None
    """The Secret of the Ingress with the certificate of all hosts."""

    model_config = ruled(
        Rule(
            "self.type == 'NodePort' || self.host.contains('{ordinal}')",
            message="each broker needs a host of its own: write {ordinal} for its number",
            field=".host",
        ),
        Rule(
            "has(self.nodePort) == (self.type == 'NodePort')",
            message="the type NodePort needs it, and no other takes it",
            field=".nodePort",
        ),
        Rule(
            _OF_INGRESS.format("ingressClassName"),
            message="only the type Ingress has a class",
            field=".ingressClassName",
        ),
        Rule(
            _OF_INGRESS.format("tlsSecretName"),
            message="only the type Ingress has TLS of its own",
            field=".tlsSecretName",
        ),
        NO_ANNOTATIONS_OF_OURS,
    )

    def host_of(self, ordinal: int) -> str:
        """Return the host of a broker."""
        return self.host.replace(ORDINAL_PLACE, str(ordinal))

    def broker_settings(self) -> dict[str, str]:
        """What brokers are to name in their answers."""
        by_tls = 443 if self.tls_secret_name else 80
        usual = by_tls if self.type == "Ingress" else PUBLIC_PORT
        port = self.port or self.node_port or usual
        scheme = "https" if self.tls_secret_name or port == 443 else "http"
        given = {
            "TAILRACE_OUTSIDE_URL": f"{scheme}://{self.host}:{port}",
            "TAILRACE_OUTSIDE_HOSTS": self.bootstrap_host,
            "TAILRACE_OUTSIDE_PORT_STRIDE": "1" if port == self.node_port else None,
        }
        return {name: value for name, value in given.items() if value is not None}
