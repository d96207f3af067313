"""What jobs share: arguments, a Spark session, and errors that are one sentence."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from tailrace.errors import TailraceError
from tailrace.spark.java import JAVA_MAJOR_MIN, can_run_spark, java_version
from tailrace.spark.plain_errors import sentence_of
from tailrace.sync import Client

# What Spark has to say comes as an exception; beside it, the same with a traceback.
_LOG_SETTINGS = """\
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = fatal
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c: %m%n
"""
# Less than what PYSPARK_SUBMIT_ARGS says. A shuffle into 200 parts, Spark's own default, takes a
# stream's micro-batch seconds.
_DEFAULTS = f"""\
spark.sql.shuffle.partitions {os.cpu_count() or 1}
spark.ui.enabled false
spark.ui.showConsoleProgress false
"""

Job = Callable[[SparkSession, argparse.Namespace], int]


def job_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """With the option that all jobs have."""
    parser = argparse.ArgumentParser(
        prog=name, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    url = os.environ.get("TAILRACE_URL", "http://127.0.0.1:9250")
    parser.add_argument("--url", default=url, type=_url, help="any broker; default $TAILRACE_URL")
    return parser


def run_job(called: argparse.Namespace, name: str, job: Job) -> int:
    """Start Spark, run the job, stop Spark; the job's exit code, or 1 and a sentence on stderr."""
    try:
        if called.topic is not None:  # before Spark starts, which takes seconds
            with Client(called.url) as client:
                client.offsets([called.topic])
        with spark_session(name) as spark:
            return job(spark, called)
    except TailraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JError) as error:
        print(f"error: {sentence_of(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


@contextmanager
def spark_session(app_name: str) -> Iterator[SparkSession]:
    """A session for the block; by `spark-submit`, or in a SPARK_HOME, as its user has set it up."""
    with ExitStack() as stack:
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has started Java
            _check_java()
            # Spark's workers are else the python3 of PATH, which need not have this package.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if "SPARK_HOME" not in os.environ:
                os.environ["SPARK_HOME"] = stack.enter_context(lean_spark_home())
                stack.callback(os.environ.pop, "SPARK_HOME")
        spark = SparkSession.builder.appName(app_name).getOrCreate()
        stack.callback(spark.stop)
        yield spark


def read_topic(
    reader: DataFrameReader | DataStreamReader, called: argparse.Namespace, **options: str
) -> DataFrame:
    """The topic's rows, by `spark.read` or `spark.readStream`."""
    source = reader.format("tailrace").option("bootstrap.servers", called.url)
    return source.option("subscribe", called.topic).options(**options).load()


def _url(text: str) -> str:
    try:
        return Client(text).url  # nothing is sent yet
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


@contextmanager
def lean_spark_home() -> Iterator[str]:
    """pyspark's own home without `python/`, and with defaults for a job on one machine.

    Workers then import pyspark as this process does. The zip in that folder has no compiled code:
    importing from it cost each worker 1.4 s of CPU more.
    """
    package = Path(pyspark.__file__).parent
    with tempfile.TemporaryDirectory(prefix="spark-home-") as name:
        home = Path(name)
        for folder in ("bin", "jars", "sbin"):
            (home / folder).symlink_to(package / folder)
        (home / "conf").mkdir()
        (home / "conf" / "log4j2.properties").write_text(_LOG_SETTINGS)
        (home / "conf" / "spark-defaults.conf").write_text(_DEFAULTS)
        yield name


def _check_java() -> None:
    """TailraceError without a Java that Spark can run on."""
    version = java_version()
    if version is None or not can_run_spark(version):
        raise TailraceError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer (found: {version or 'none'}): install it, "
            "or set JAVA_HOME to where it is"
        )
