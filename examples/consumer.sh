#!/bin/sh
# Prints a topic's records, one a line, as a consumer of a group; several share the partitions:
#
#     sh examples/consumer.sh TOPIC GROUP [CONSUMER]
#
# At least once: the next poll confirms what was printed. Goes on over a restart of the broker, until
# it is ended (Ctrl-C, SIGTERM), or another process has taken its name.
set -eu

url=${TAILRACE_URL:-http://127.0.0.1:9250}
topic=${1:?"usage: consumer.sh TOPIC GROUP [CONSUMER]"}
group=${2:?"usage: consumer.sh TOPIC GROUP [CONSUMER]"}
consumer=${3:-$(uname -n)-$$}
delivery=0 # the one that was printed last; 0: none
epoch=     # the assignment's, as the last answer named it; none: it is not registered
files=$(mktemp -d)

# --url-query encodes what it is given (curl 7.87); a header without a value is not sent.
post() {
    curl --silent --show-error --request POST --max-time 30 --retry 8 --retry-connrefused \
        --header "tailrace-delivery: $delivery" --header "tailrace-assignment-epoch: $epoch" \
        --url-query "consumerId=$consumer" "$@"
}

register() {
    delivery=0 epoch=
    post --fail-with-body --output "$files/answer" --url-query "topic=$topic" \
        --url-query "group=$group" --url-query onNewGroup=startFromEarliest \
        "$url/v1/consumer/register" || { cat "$files/answer" >&2; exit 1; }
    epoch=$(sed -n 's/.*"assignmentEpoch": *\([0-9]*\).*/\1/p' "$files/answer")
}

number_in() { # the number in this header of the last poll's answer
    sed -n "s/^$1: *\([0-9]*\).*/\1/p" "$files/head"
}

leave() {
    if [ -n "$epoch" ]; then # else it is not registered, and another process may have its name
        post "$url/v1/consumer/commit" >/dev/null && # what was printed
            post --url-query commit=false "$url/v1/consumer/goodbye" >/dev/null
    fi
    rm -rf "$files"
}

is_stopping=
trap leave EXIT
trap 'is_stopping=yes' INT TERM
register
while [ -z "$is_stopping" ]; do
    status=$(post --header 'accept: application/x-ndjson' --url-query waitMs=1000 \
        --output "$files/records" --dump-header "$files/head" --write-out '%{http_code}' \
        "$url/v1/consumer/poll")
    case $status in
    200)
        cat "$files/records"
        delivery=$(number_in tailrace-delivery) epoch=$(number_in tailrace-assignment-epoch)
        ;;
    204) epoch=$(number_in tailrace-assignment-epoch) ;; # nothing came
    *)
        if grep -q consumer-not-registered "$files/records"; then
            register # the broker has not heard of it for too long
        else
            cat "$files/records" >&2
            exit 1
        fi
        ;;
    esac
done
