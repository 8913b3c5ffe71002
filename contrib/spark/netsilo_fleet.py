"""Checks a fleet with Spark: observations in, a table of hosts and a table of findings out.

    spark-submit netsilo_fleet.py --input 's3a://fleet/observations/*.ndjson.gz' \
        --output s3a://fleet/checked

Each task runs `netsilo check --ndjson` on the bytes of some files, so a line is what netsilo reads as
one: an observation (netsilo capture --ndjson), or the path of a bundle in a folder that all executors
have. A file that ends in .gz is decompressed. netsilo must be on the path of the executors, or named
by --program.

| table | rows |
|---|---|
| OUTPUT/lines | one per line: file and number, and its findings, or why the line could not be used |
| OUTPUT/hosts | one per host: of several lines with a host's name, the last one that could be used |
| OUTPUT/findings | one per finding of a host, in folders by finding |

A task that dies is run again from its files, and Spark moves the files of a task into the table only
once: nothing is lost and nothing is double. A file is read by one task, and its compressed size must
fit the task's memory.
"""
import argparse
import gzip
import io
import json
import shutil
import subprocess
import threading

from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

TEXT = StringType()
FINDING = StructType([StructField(name, TEXT) for name in ("finding", "severity", "subject", "title")])
LINE = StructType([
    StructField("file", TEXT),
    StructField("line", LongType()),
    StructField("host", TEXT),
    StructField("bundle", TEXT),
    StructField("kernel", TEXT),
    StructField("cpus", IntegerType()),
    StructField("drivers", ArrayType(TEXT)),
    StructField("error", TEXT),
    StructField("findings", ArrayType(FINDING)),
])


def row(file, line):
    """A line of `netsilo check --ndjson` as a row."""
    answer = json.loads(line)
    host = answer.get("host") or {}
    findings = (answer.get("check") or {}).get("findings", [])
    return (
        file, answer["line"], host.get("name"), answer.get("bundle"), host.get("kernel"),
        host.get("cpus"), host.get("drivers"), answer.get("error"),
        [(it["id"], it["severity"], it["subject"], it["title"]) for it in findings],
    )


def answered(file, content, program):
    """The rows of a file."""
    text = io.BytesIO(content)
    if file.endswith(".gz"):
        text = gzip.GzipFile(fileobj=text)
    command = [program, "check", "--ndjson"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as netsilo:
        failed = []

        def feed():
            try:
                with netsilo.stdin as stdin:
                    shutil.copyfileobj(text, stdin)
            except Exception as error:  # a broken file, or a filter that has ended
                failed.append(error)

        feeder = threading.Thread(target=feed)
        feeder.start()
        for line in netsilo.stdout:
            yield row(file, line)
        feeder.join()
    # 12: some lines could not be used, and their rows say why. Any other failure fails the task.
    if failed or netsilo.returncode not in (0, 12):
        raise RuntimeError(f"{file}: {failed}, {command} ended with {netsilo.returncode}")


def checked(spark, files, program):
    """One row per line."""
    content = spark.sparkContext.binaryFiles(files)
    rows = content.flatMap(lambda file: answered(*file, program))
    return spark.createDataFrame(rows, LINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--input", required=True, help="files with one line per host")
    parser.add_argument("--output", required=True, help="folder of the two tables; replaced")
    parser.add_argument("--program", default="netsilo", help="netsilo on the executors")
    arguments = parser.parse_args()

    spark = SparkSession.builder.appName("netsilo fleet").getOrCreate()
    write = lambda rows, name, *by: (
        rows.write.mode("overwrite").partitionBy(*by).parquet(f"{arguments.output}/{name}"))
    write(checked(spark, arguments.input, arguments.program), "lines")
    # From the tables, so that the filter runs once for each line.
    spark.read.parquet(f"{arguments.output}/lines").createOrReplaceTempView("lines")
    hosts = spark.sql("""SELECT last.* FROM (
        SELECT max_by(struct(*), struct(file, line)) AS last
        FROM lines WHERE error IS NULL GROUP BY host)""")
    write(hosts, "hosts")
    columns = ("host", "bundle", "kernel", "cpus", "drivers", "inline(findings)")
    findings = spark.read.parquet(f"{arguments.output}/hosts").selectExpr(*columns)
    write(findings, "findings", "finding")
    spark.stop()


if __name__ == "__main__":
    main()
