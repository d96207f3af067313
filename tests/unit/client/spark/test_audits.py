from tailrace.spark.audits import (
    AuditFinding,
    PartitionCount,
    committed_ranges,
    compare,
    since_start,
    summary,
)

A, B = ("t", 0), ("t", 1)


def log_of(*sources: str) -> str:
    return "\n".join(["v1", '{"batchWatermarkMs":0}', *sources])


def test_partitions_that_are_as_expected_are_no_finding() -> None:
    counts = {A: PartitionCount(10, 10, 0, 9), B: PartitionCount(5, 5, 20, 24)}

    assert compare(counts, {A: range(10), B: range(20, 25)}) == []


def test_what_is_missing_at_either_end_or_between_is_counted() -> None:
    counts = {A: PartitionCount(6, 6, 2, 8)}

    assert compare(counts, {A: range(10)}) == [AuditFinding(A, 0, 10, 4, 0)]


def test_a_partition_without_any_row_is_missing_as_a_whole() -> None:
    assert compare({}, {A: range(5, 10), B: range(7, 7)}) == [AuditFinding(A, 5, 10, 5, 0)]


def test_rows_that_are_there_again_are_counted() -> None:
    counts = {A: PartitionCount(12, 10, 0, 9)}

    assert compare(counts, {A: range(10)}) == [AuditFinding(A, 0, 10, 0, 2)]


def test_rows_outside_of_what_is_expected_must_be_dense_too() -> None:
    counts = {A: PartitionCount(20, 20, 0, 19), B: PartitionCount(3, 3, 5, 9)}

    assert compare(counts, {A: range(5, 10)}) == [AuditFinding(B, 5, 10, 2, 0)]


def test_a_finding_is_a_sentence() -> None:
    assert str(AuditFinding(A, 0, 5000, 1200, 3)) == (
        "t/0, offsets [0, 5000): 1,200 missing, 3 there again"
    )


def test_the_summary_adds_up() -> None:
    findings = [AuditFinding(A, 0, 10, 4, 1), AuditFinding(B, 0, 10, 2, 0)]

    assert summary(1_200_000, 4, []) == (
        "audit: 1,200,000 records, 4 partitions, gaps=0 duplicates=0"
    )
    assert summary(5, 2, findings).endswith("gaps=6 duplicates=1")


def test_a_checkpoint_reports_what_its_committed_batches_have_read() -> None:
    logs = {
        7: log_of('{"t": {"0": 10}}'),
        8: log_of('{"t": {"0": 30, "1": 5}}'),
        9: log_of('{"t": {"0": 40, "1": 8}}'),
    }

    assert committed_ranges(logs, {6, 7, 8}) == {A: range(10, 30), B: range(5, 5)}


def test_sources_of_others_and_sources_without_offsets_are_left_out() -> None:
    logs = {0: log_of("-", "17", '{"logOffset":3}', '{"t": {"0": 10}}')}

    assert committed_ranges(logs, {0}) == {A: range(10, 10)}


def test_a_checkpoint_without_a_committed_batch_expects_nothing() -> None:
    assert committed_ranges({0: log_of('{"t": {"0": 10}}')}, set()) == {}


def test_a_partition_that_was_cut_back_is_expected_up_to_where_it_ends() -> None:
    logs = {0: log_of('{"t": {"0": 30}}'), 1: log_of('{"t": {"0": 10}}')}

    assert committed_ranges(logs, {0, 1}) == {A: range(10, 10)}


def test_an_archive_of_all_begins_where_the_topic_does() -> None:
    expected = {A: range(10, 30), B: range(5, 5)}

    assert since_start(expected, {A: range(2, 90), ("t", 2): range(9)}) == {
        A: range(2, 30),
        B: range(5, 5),
    }
    assert since_start(expected, {A: range(20, 90)}) == expected
