"""Tailrace's operator: makes StreamCluster and Topic resources into rings of brokers and topics.

Charter: level-triggered. A worker for each resource (`workers.py`) looks at it again and again
(`reconcile.py`): observes all that is there (`observe.py`), asks a pure plan for one action
(`plan.py`, `topic_plan.py`), reports (`status.py`, `topic_status.py`) and carries it out
(`carry_out.py`); it may be stopped between any two calls. `kube.py` alone calls Kubernetes,
`admin.py` alone brokers; `documents.py` and `answers.py` say what they answered. `crds.py`,
`crd_pages.py` and `structural.py` make the CRDs and their page, and do not run in the operator.
Imports point down only; of the client it takes `tailrace.aio`, its errors and values, and the one
parser of quantities.
"""
