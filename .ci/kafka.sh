#!/usr/bin/env bash
# Fetches the Apache Kafka that the tests run against (tests/kafka/pom.xml) into target/kafka/lib. The tests start the brokers.
#   .ci/kafka.sh fetch     exit 0: it is there; 3: it cannot be fetched (the reason is printed)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "$*" != fetch ]; then
  echo "usage: .ci/kafka.sh fetch" >&2
  exit 2
fi

pom=tests/kafka/pom.xml
log_conf=tests/kafka/simplelogger.properties
mkdir -p target/kafka
home=$PWD/target/kafka
lib=$home/lib
want=$(cat "$pom" "$log_conf" | cksum)

if [ -f "$lib/.fetched" ] && [ "$(cat "$lib/.fetched")" = "$want" ]; then
  echo "Apache Kafka: already in target/kafka/lib"
  exit 0
fi

cannot() { echo "Apache Kafka cannot be fetched: $1" >&2; exit 3; }

command -v java >/dev/null 2>&1 || cannot "no java found"
command -v mvn >/dev/null 2>&1 || cannot "no mvn found"

new=$home/lib.new.$$
log=$home/fetch.log
trap 'rm -rf "$new"' EXIT
# Bounded: without a network Maven gives up at once, behind a silent firewall only by these.
limit=()
if command -v timeout >/dev/null 2>&1; then limit=(timeout 600); fi
if ! ${limit[@]+"${limit[@]}"} mvn -q -B -f "$pom" dependency:copy-dependencies -DoutputDirectory="$new" \
    -Daether.connector.connectTimeout=15000 -Daether.connector.requestTimeout=60000 >"$log" 2>&1 </dev/null; then
  grep -m 3 -F '[ERROR]' "$log" >&2 || tail -n 3 "$log" >&2
  cannot "Maven failed, see $log"
fi
ls "$new"/kafka_*.jar >/dev/null 2>&1 || cannot "Maven left no Kafka jar, see $log"

cp "$log_conf" "$new/"
echo "$want" >"$new/.fetched"
rm -rf "$lib"
mv "$new" "$lib"
echo "Apache Kafka: $(basename "$(ls "$lib"/kafka_*.jar)" .jar) fetched to target/kafka/lib"
