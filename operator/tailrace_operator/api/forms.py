"""Names, labels and annotations as Kubernetes takes them, refused before they reach a pod."""

from typing import Annotated

from pydantic import Field

from tailrace_operator.api.fields import Keys, Text, TotalBytes

# Kubernetes' own forms (apimachinery, `validation.go`).
HOST = "[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_SHORT_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = f"({HOST}/)?{_SHORT_NAME}"
_ANNOTATION_KEY = f"({HOST.replace('a-z', 'A-Za-z')}/)?{_SHORT_NAME}"
_SHORT_NAME_SAID = (
    "up to 63 letters, digits, hyphens, underscores and dots, from a letter or digit to another"
)
_KEY_SAID = f"{_SHORT_NAME_SAID}, optionally after a DNS name and a slash"

_NOT_A_NAME = (
    "not a name in Kubernetes: lowercase letters, digits, hyphens and dots, from a letter or digit "
    "to another"
)

Name = Annotated[str, Field(min_length=1, max_length=253), Text(HOST, _NOT_A_NAME)]
NameOrNone = Annotated[str, Field(max_length=253), Text(f"({HOST})?", _NOT_A_NAME)]
LabelValue = Annotated[
    str, Field(max_length=63), Text(f"({_SHORT_NAME})?", f"not a label's value: {_SHORT_NAME_SAID}")
]
AnnotationValue = Annotated[str, Field(max_length=16_384)]
Labels = Annotated[
    dict[str, LabelValue],
    Field(max_length=64),
    Keys(_LABEL_KEY, f"not a label's key: {_KEY_SAID}"),
]
Annotations = Annotated[
    dict[str, AnnotationValue],
    Field(max_length=128),
    Keys(_ANNOTATION_KEY, f"not an annotation's key: {_KEY_SAID}"),
    TotalBytes(
        131_072,
        "more than 128Ki of annotations: of the 256Ki that Kubernetes takes, the cluster's own "
        "have the rest",
    ),
]
Origin = Annotated[
    str,
    Field(max_length=253),
    Text(
        "[*]|[a-z][-a-z0-9+.]*://[^/?#, A-Z]+",
        "not an origin: scheme, host and port in lower case as in http://localhost:3000, or *",
    ),
]
TaintKey = Annotated[
    str, Field(max_length=317), Text(f"({_LABEL_KEY})?", f"not a taint's key: {_KEY_SAID}")
]
