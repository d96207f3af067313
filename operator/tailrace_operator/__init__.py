"""Tailrace's operator: makes StreamCluster and Topic resources into rings of brokers and topics.

Charter: level-triggered. A worker for each resource (`app/workers.py`) runs one reconcile pass
after the other (`app/reconcile.py`): it observes (`app/observe.py`), asks a pure plan for one
action (`plan/`), reports the status, and applies the action (`app/apply.py`). It may stop between
any two calls. Only `kube/` calls Kubernetes and only `ring/` calls brokers. `tools/crds.py` makes
the CRDs from `api/`.
Imports point down only: app, kube | ring, plan, api. Of the client it takes `tailrace.aio`, its
errors and values, and the one parser of quantities.
"""
