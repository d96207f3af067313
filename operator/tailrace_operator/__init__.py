"""Tailrace's operator: makes StreamCluster and Topic resources into rings of brokers and topics.

Charter: level-triggered. A worker for each resource observes all that is there (`observe.py`), asks
a pure plan for one action (`plan.py`, `topic_plan.py`), carries it out (`kube.py`, `admin.py`) and
reports (`status.py`); it may be stopped between any two calls. Imports point down only: `handlers`,
then `reconcile`, then `observe`, `kube` and `admin`, then the pure modules, then `spec`. Of the
client it takes `tailrace.aio`, its errors and values, and the one parser of quantities.
"""
