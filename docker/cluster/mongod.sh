#!/usr/bin/env bash
# Start one member of the replica set. mongod demands a key file that only its own user can read.
set -euo pipefail
owner=$(id -u mongodb 2>/dev/null || id -u)
install -m 0400 -o "$owner" /run/secrets/mongo_key /tmp/mongo.key
set -- mongod --replSet rs0 --bind_ip_all --keyFile /tmp/mongo.key "$@"
# The official image's entrypoint gives the data folder to its user and becomes that user.
command -v docker-entrypoint.sh >/dev/null && set -- docker-entrypoint.sh "$@"
exec "$@"
