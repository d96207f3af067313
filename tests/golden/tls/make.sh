#!/bin/sh
# Makes the files of this folder again: a CA for tests (its key is thrown away) and certificates that it
# issued, for loopback and for another host, all for 100 years. They protect nothing.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 36500 \
    -subj "/CN=Tailrace test CA" -keyout "$work/ca.key" -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
# $1: the file, $2: the host's names
certify() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -subj "/CN=Tailrace test" -keyout "$work/$1.key" -out "$work/$1.csr"
    cat >"$work/$1.extensions" <<END
basicConstraints=critical,CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
subjectAltName=$2
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
END
    openssl x509 -req -in "$work/$1.csr" -CA ca.pem -CAkey "$work/ca.key" -CAserial "$work/serial" \
        -CAcreateserial -days 36500 -extfile "$work/$1.extensions" -out "$work/$1.crt"
    cat "$work/$1.key" "$work/$1.crt" >"$1"
}
certify server.pem "DNS:localhost,IP:127.0.0.1"
certify elsewhere.pem "DNS:elsewhere.example"
rm -r "$work"
