"""The CRDs and their reference, made from the specs: `python -m tools.crds`.

Run at the root of the repository; it writes the CRDs into the chart, where crds/ links to them, and
docs/crds.md.
"""

from pathlib import Path
from typing import Any

import yaml

from tailrace_operator.api.spec import GROUP, VERSION
from tools.crd_kinds import KINDS, Kind
from tools.crd_pages import crds_page
from tools.structural import structural

_HEAD = "# Made by python -m tools.crds from operator/tailrace_operator/api/spec.py.\n"
# Helm leaves them when a release goes, since all data depends on them.
_ANNOTATIONS = {"helm.sh/resource-policy": "keep"}


def crd(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind."""
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": [kind.short],
        "categories": ["tailrace"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}", "annotations": _ANNOTATIONS},
        "spec": {
            "group": GROUP,
            "names": names,
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [_column(*column) for column in kind.columns],
                    "subresources": _subresources(kind),
                    "schema": {"openAPIV3Schema": _schema(kind)},
                }
            ],
        },
    }


def files() -> dict[str, str]:
    """All that is made, by its path."""
    made = {"docs/crds.md": crds_page(KINDS)}
    for kind in KINDS:
        made[f"helm/tailrace/files/crds/{kind.kind.lower()}.yaml"] = _HEAD + _yaml(crd(kind))
    return made


def main() -> None:
    """Write them."""
    for path, text in files().items():
        Path(path).write_text(text)


def _schema(kind: Kind) -> dict[str, Any]:
    spec, status = structural(kind.spec), structural(kind.status)
    name = {"type": "string", **kind.name}
    return {
        "type": "object",
        "description": (kind.spec.__doc__ or "").splitlines()[0],
        **({} if "default" in spec else {"required": ["spec"]}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec,
            "status": status,
        },
    }


def _column(name: str, kind: str, path: str) -> dict[str, str]:
    return {"name": name, "type": kind, "jsonPath": path}


def _subresources(kind: Kind) -> dict[str, Any]:
    if kind.scale is None:
        return {"status": {}}
    wanted, found, selector = kind.scale
    paths = {
        "specReplicasPath": wanted,
        "statusReplicasPath": found,
        "labelSelectorPath": selector,
    }
    return {"status": {}, "scale": paths}


def _yaml(document: dict[str, Any]) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Without anchors, which people do not like to read."""

    def ignore_aliases(self, data: object) -> bool:
        """All of it is written out."""
        return True


if __name__ == "__main__":
    main()
