#!/bin/sh
# Build stage: takes from PySpark what jobs on Kubernetes do not need, 0.2 GB: machine learning,
# Hive, YARN, the shell of Spark Connect, the RocksDB state store, other platforms' networking.
# A name that is not there any more fails the build: look then at what replaces it.
#     docker/trim_spark.sh FOLDER
set -eu
spark=$(echo "$1"/lib/python3*/site-packages/pyspark)
cd "$spark/jars"
rm -r connect-repl
rm rocksdbjni-* breeze* spark-mllib* spark-yarn_* spark-hive* \
    derby* datanucleus-* jdo-api-* javax.jdo-* \
    hive-beeline-* hive-cli-* hive-common-* hive-exec-* hive-jdbc-* hive-metastore-* hive-serde-* \
    hive-service-rpc-* hive-shims-* \
    netty-*-windows-* netty-*-osx-* netty-*-riscv64*
# Workers import pyspark and py4j from this environment, compiled, when the archives are not there.
rm -r ../examples ../data ../python
# Paths that do not name Python's version: SPARK_HOME, and local:///opt/tailrace/jobs/aggregate.py.
ln -s "$spark" "$1/spark"
ln -s "$(echo "$1"/lib/python3*/site-packages/tailrace/spark/jobs)" "$1/jobs"
