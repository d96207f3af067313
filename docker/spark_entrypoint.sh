#!/bin/sh
# Spark on Kubernetes starts the image with `driver ARGS` or `executor`.
set -eu
# A random UID (OpenShift) has no passwd entry; Hadoop's UserGroupInformation needs a user name.
if ! getent passwd "$(id -u)" >/dev/null 2>&1; then
    export HADOOP_USER_NAME="${HADOOP_USER_NAME:-spark}"
fi
role="${1:-}"
case "$role" in
driver)
    shift
    set -- "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    shift
    # One JVM option per variable SPARK_JAVA_OPT_0, _1, ..., in order; values may hold spaces.
    set --
    i=0
    while eval "[ -n \"\${SPARK_JAVA_OPT_$i+x}\" ]"; do
        eval "opt=\$SPARK_JAVA_OPT_$i"
        set -- "$@" "$opt"
        i=$((i + 1))
    done
    set -- "$JAVA_HOME/bin/java" "$@" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:${SPARK_EXTRA_CLASSPATH:-}:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" \
        --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" \
        --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
        --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
esac
exec tini -s -- "$@"
