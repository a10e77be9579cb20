#!/bin/sh
# Makes the secrets of docker-compose.yml: one a file, in ./secrets or the directory given. Those that are there stay.
#
# Containers read them as their own users, so the files can be read by all; who may enter the directory is only its owner.
set -eu
directory=${1:-secrets}
umask 077
mkdir -p "$directory"
chmod 700 "$directory"
for name in redis_password metrics_key admin_key grafana_password; do
    if [ ! -e "$directory/$name" ]; then
        head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$directory/.$name"
        chmod 444 "$directory/.$name"
        mv "$directory/.$name" "$directory/$name"
    fi
done
# A token of the Hugging Face hub, for gated models: yours, if you have one.
if [ ! -e "$directory/hf_token" ]; then
    : >"$directory/hf_token"
    chmod 444 "$directory/hf_token"
fi
