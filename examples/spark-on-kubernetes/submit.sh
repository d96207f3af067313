#!/bin/sh
# Runs a job of Tailrace in the cluster, with one driver and two executors, and shows its output.
#
#     cd examples/spark-on-kubernetes
#     ./submit.sh                   # the flights of the StreamCluster `events` in `default`
#     ./submit.sh audit --url http://events.default.svc:9250 --topic flights
#
# Before, once: kubectl apply -f rbac.yaml
# Wanted here: kubectl with a current context, Java 17, spark-submit (pip install pyspark==4.3.0).
# From the environment: IMAGE, the image of Dockerfile.spark; EXECUTORS; KUBECTL; SPARK_SUBMIT.
# It ends with the job's exit code; the driver's pod stays, with its log, until you delete it.
set -eu
if [ $# = 0 ]; then
    set -- aggregate --url http://events.default.svc:9250 --topic flights \
        --group-by .origin --count --avg .delayMinutes --top 10
fi
job="$1"
shift
kubectl="${KUBECTL:-kubectl}"
folder=$(cd "$(dirname "$0")" && pwd)
spark_submit=$(command -v "${SPARK_SUBMIT:-spark-submit}")
PATH="$(cd "$(dirname "$spark_submit")" && pwd):$PATH"  # where it looks for a Python with pyspark
driver="$job-$(date +%s)-driver"

secrets=$(mktemp -d)
trap 'rm -rf "$secrets"' EXIT
cluster() {
    $kubectl config view --raw --minify --flatten --output "jsonpath={.clusters[0].cluster.$1}"
}
cluster certificate-authority-data | base64 -d >"$secrets/ca.crt"
$kubectl create token submitter --namespace spark >"$secrets/token"

# Without KUBECONFIG=/dev/null spark-submit reads the current context as well.
# The timeouts, ms: on a busy machine the start of Java alone takes longer than the usual 10 s.
# The memory is for small data: Spark adds 0.4 of it for Python, at least 384 MiB.
KUBECONFIG=/dev/null "$spark_submit" \
    --master "k8s://$(cluster server)" --deploy-mode cluster --name "$job" \
    --conf spark.kubernetes.namespace=spark \
    --conf spark.kubernetes.submission.connectionTimeout=60000 \
    --conf spark.kubernetes.submission.requestTimeout=60000 \
    --conf spark.kubernetes.authenticate.submission.caCertFile="$secrets/ca.crt" \
    --conf spark.kubernetes.authenticate.submission.oauthTokenFile="$secrets/token" \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
    --conf spark.kubernetes.container.image="${IMAGE:-tailrace/spark:0.1.0}" \
    --conf spark.kubernetes.container.image.pullPolicy=IfNotPresent \
    --conf spark.kubernetes.driver.pod.name="$driver" \
    --conf spark.kubernetes.driver.podTemplateFile="$folder/podtemplate.yaml" \
    --conf spark.kubernetes.executor.podTemplateFile="$folder/podtemplate.yaml" \
    --conf spark.executor.instances="${EXECUTORS:-2}" --conf spark.executor.cores=1 \
    --conf spark.driver.memory=600m --conf spark.executor.memory=600m \
    --conf spark.kubernetes.driver.request.cores=0.2 \
    --conf spark.kubernetes.executor.request.cores=0.2 \
    --conf spark.sql.shuffle.partitions=4 \
    --conf spark.ui.enabled=false --conf spark.log.level=WARN \
    "local:///opt/tailrace/jobs/$job.py" "$@" >&2

# spark-submit ends with 0 also when the driver failed.
$kubectl logs --namespace spark "$driver"
code=$($kubectl get pod --namespace spark "$driver" \
    --output 'jsonpath={.status.containerStatuses[0].state.terminated.exitCode}')
[ -n "$code" ] || echo "The driver $driver has not ended: kubectl get pod --namespace spark" >&2
exit "${code:-1}"
