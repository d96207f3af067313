#!/bin/sh
# Stores standard input, one JSON event a line, in a topic. All events get one key, or none:
#
#     tail -n 3 events.ndjson | sh examples/producer.sh TOPIC [KEY]
#
# curl tries again while the broker is away or full. At least once: when an answer is lost on its
# way, the events may be stored twice. Ends with status 22 when the broker refuses them.
set -eu

url=${TAILRACE_URL:-http://127.0.0.1:9250}
topic=${1:?"usage: producer.sh TOPIC [KEY] < events.ndjson"}

# --data-binary: plain --data would join the lines. --url-query encodes the key (curl 7.87).
exec curl --silent --show-error --fail-with-body --max-time 30 --retry 8 --retry-connrefused \
    --header 'content-type: application/x-ndjson' --data-binary @- \
    ${2+--url-query "partitionKey=$2"} \
    "$url/v1/topic/$topic/messages"
