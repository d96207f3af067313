import pytest

from tailrace.spark.plain_errors import sentence_of

PLANNER = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_DATA_SOURCE] x
Traceback (most recent call last):
  File "tailrace/spark/task.py", line 33, in report_loss
    raise DataLossError(f"{loss}. To read what is left, set failOnDataLoss to false")
tailrace.spark.task.DataLossError: topic "nosuch" does not exist. To read what is left
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
"""


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (PLANNER, 'topic "nosuch" does not exist. To read what is left'),
        ("tailrace.errors.ConnectionFailedError: no broker answers", "no broker answers"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03",
            "[PATH_NOT_FOUND] Path does not exist: file:/x.",
        ),
        (
            "An error occurred while calling o419.parquet.\n"
            ": org.apache.spark.SparkException: [FAILED_READ_FILE] Error while reading file:/x.\n"
            "\tat org.apache.spark",
            "[FAILED_READ_FILE] Error while reading file:/x.",
        ),
        ("\nJob aborted.\n\tat org.apache.spark", "Job aborted."),
        ("", "Spark failed and does not say why"),
    ],
)
def test_one_sentence_is_found_in_what_spark_raises(message: str, sentence: str) -> None:
    assert sentence_of(message) == sentence
