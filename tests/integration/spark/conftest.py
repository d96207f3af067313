"""One Spark session and one broker for all tests here: starting Java takes ten seconds."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tailrace.sync import Client
from tests.support.broker.fixtures import RunningBroker, start_broker
from tests.support.spark.spark import FLIGHTS_TOPIC, MASTER, SPARK_CONF, produce_flights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """Two executor cores in this process's Java."""
    from pyspark.sql import SparkSession

    from tailrace.spark.jobs.session import lean_spark_home

    with lean_spark_home() as home:
        with pytest.MonkeyPatch.context() as patch:  # Java takes it along; other tests must not
            patch.setenv("SPARK_HOME", home)
            patch.setenv("PYSPARK_PYTHON", sys.executable)
            patch.chdir(tmp_path_factory.mktemp("spark"))
            session = SparkSession.builder.master(MASTER).config(map=SPARK_CONF).getOrCreate()
        yield session
        session.stop()


@pytest.fixture(scope="session")
def flights_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """`flights` holds FLIGHTS and stays as it is; tests add topics of their own."""
    with start_broker(tmp_path_factory.mktemp("flights")) as running:
        with Client(running.url) as client:
            client.create_topic(FLIGHTS_TOPIC)
        produce_flights(running, FLIGHTS_TOPIC)
        yield running
