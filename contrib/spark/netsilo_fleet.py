"""Checks a fleet with Spark: observations in, a table of hosts and a table of findings out.

    spark-submit netsilo_fleet.py --input 's3a://fleet/observations/*.ndjson.gz' \
        --output s3a://fleet/checked

Each task runs one `netsilo check --ndjson` over its part of the lines; netsilo must be on the path of
the executors, or named by --program. A line is an observation (netsilo capture --ndjson), or the
path of a bundle in a folder that all executors have. OUTPUT/hosts has one row per line of input, with
its findings, or the reason why the line could not be used. OUTPUT/findings has one row per finding,
in folders by finding.

A task that dies is run again from its part of the input, and Spark moves the files of a task into
the table only once: nothing is lost and nothing is double.
"""
import argparse
import json
import shlex

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType

TEXT = StringType()
FINDING = StructType([StructField(name, TEXT) for name in ("finding", "severity", "subject", "title")])
HOST = StructType([
    StructField("host", TEXT),
    StructField("bundle", TEXT),
    StructField("kernel", TEXT),
    StructField("cpus", IntegerType()),
    StructField("drivers", ArrayType(TEXT)),
    StructField("error", TEXT),
    StructField("findings", ArrayType(FINDING)),
])


def row(line):
    """A line of `netsilo check --ndjson` as a row."""
    answer = json.loads(line)
    host = answer.get("host") or {}
    findings = (answer.get("check") or {}).get("findings", [])
    return (
        host.get("name"), answer.get("bundle"), host.get("kernel"), host.get("cpus"),
        host.get("drivers"), answer.get("error"),
        [(it["id"], it["severity"], it["subject"], it["title"]) for it in findings],
    )


def checked(spark, lines, program):
    """One row per line."""
    # 12: some lines could not be used, and their rows say why. Any other failure fails the task.
    command = f"{shlex.quote(program)} check --ndjson || test $? = 12"
    rows = lines.pipe(f"sh -c {shlex.quote(command)}", checkCode=True).map(row)
    return spark.createDataFrame(rows, HOST)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", required=True, help="files with one line per host")
    parser.add_argument("--output", required=True, help="folder of the two tables; replaced")
    parser.add_argument("--program", default="netsilo", help="netsilo on the executors")
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("netsilo fleet").getOrCreate()
    lines = spark.sparkContext.textFile(arguments.input)
    hosts = f"{arguments.output}/hosts"
    checked(spark, lines, arguments.program).write.mode("overwrite").parquet(hosts)
    # From the table, so that the filter runs once for each line.
    columns = ("host", "bundle", "kernel", "cpus", "drivers", "inline(findings)")
    findings = spark.read.parquet(hosts).selectExpr(*columns)
    findings.write.mode("overwrite").partitionBy("finding").parquet(f"{arguments.output}/findings")
    spark.stop()


if __name__ == "__main__":
    main()
