#!/usr/bin/env bash
# Make the secrets of compose.cluster.yaml in docker/secrets; those that are there stay.
# Replace tls_cert.pem and tls_key.pem with the certificate of your domain.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p secrets
cd secrets
chmod 0700 .
umask 022 # Compose mounts them as they are, and the containers' users must read them; the folder keeps others out
make() { [ -s "$1" ] || "${@:2}" > "$1"; }
hex() { openssl rand -hex "$1" | tr -d '\n'; }
key() { printf 'k1:%s' "$(openssl rand -base64 32)"; }
url() { printf 'mongodb://%s:%s@mongo1,mongo2,mongo3/?replicaSet=rs0&authSource=admin' "$1" "$(cat "$2")"; }
make mongo_key openssl rand -base64 756
make mongo_root_password hex 24
make mongo_service_password hex 24
make mongo_url url service mongo_service_password
make mongo_root_url url root mongo_root_password
make secret_keys key
[ -s tls_cert.pem ] || openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost \
  -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout tls_key.pem -out tls_cert.pem 2>/dev/null
chmod 0644 tls_cert.pem tls_key.pem
echo "secrets are in $PWD"
