"""Logs of a broker or the operator: JSON lines, or pretty on a terminal.

An event's name is constant, `noun.verb`; everything else is a field with its unit. Shells log;
machines and plans never do. On a hot path the caller first asks whether DEBUG is on.
"""

import logging
import sys


def configure_logs(level: str, *, quiet: tuple[str, ...] = ()) -> None:
    """Send all records, also those of `logging`, to standard error in one format.

    The loggers in `quiet` log warnings and errors only.
    """
    import structlog

    level_number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer()
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level_number, force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(max(level_number, logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        cache_logger_on_first_use=True,
    )
