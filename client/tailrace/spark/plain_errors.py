"""Finds the one sentence in what Spark raises, which else holds two tracebacks; pure."""

import re

# How Python ends the traceback of an error of ours, in a planner or in a task.
_OWN_ERROR = re.compile(r"^(?:pyspark\.\S+: )?tailrace\.[\w.]*Error: (.+)$", re.MULTILINE)
# What py4j puts around an exception that pyspark has no class for.
_JAVA_ERROR = re.compile(r"^: (?:[\w.$]+: )?(.+)$", re.MULTILINE)
_SQL_STATE = re.compile(r" SQLSTATE: \w+")


def sentence_of(message: str) -> str:
    """Our own error if one is behind it, else the first line of Spark's."""
    match_ = _OWN_ERROR.search(message) or _JAVA_ERROR.search(message)
    if match_:
        return match_[1]
    lines = message.strip().splitlines() or ["Spark failed and does not say why"]
    return _SQL_STATE.sub("", lines[0])
