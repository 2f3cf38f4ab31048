#!/bin/bash
# Apply the play to a new Debian server: a minimal Debian 12 in systemd-nspawn, with systemd as its first process.
#   deploy/try_play.sh FOLDER [SETUP]     as root; 4 GB in FOLDER, some 15 minutes; ends with "ok" or an error
# The play runs over SSH, twice: the second run must change nothing. Then the site must answer through Caddy and nginx,
# and go on answering while a third run restarts it with a new commit. The server has its own network, which
# reaches the internet through slirp4netns. SETUP is a program that changes the files of the server before it starts: it
# gets their folder as argument and may for example write a proxy or an authority of this network.
# Needs: apt install debootstrap systemd-container slirp4netns ansible-core openssh-client
set -euo pipefail
folder=$(realpath "$1"); setup=${2:-true}
here=$(realpath "$(dirname "$0")"); repository=$(git -C "$here" rev-parse --show-toplevel)
server=$folder/server; key=$folder/key; network=dailytrain-try

clean_up() {
    kill "${nspawn:-}" "${slirp:-}" 2>> "$folder/clean_up.log" || true
    wait || true
    ip netns del "$network" || true
}
inside() { ip netns exec "$network" "$@"; }
on_server() {
    inside ssh -q -i "$key" -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no root@127.0.0.1 "$@"
}
apply() {
    ANSIBLE_NOCOLOR=1 ANSIBLE_HOST_KEY_CHECKING=False ANSIBLE_PRIVATE_KEY_FILE=$key \
        ANSIBLE_SSH_ARGS="-o UserKnownHostsFile=/dev/null -o IdentitiesOnly=yes" \
        inside ansible-playbook -i 127.0.0.1, -u root "$here/playbook.yml" \
        -e site_domain=localhost -e repository=/srv/code.git -e version=try > "$folder/$1.log" || { tail -n 30 "$folder/$1.log"; exit 1; }
    grep '^127.0.0.1 .*ok=' "$folder/$1.log"
}

mkdir -p "$folder"
debootstrap --variant=minbase --include=ca-certificates,curl,dbus,openssh-server,python3,systemd-sysv bookworm "$server" > "$folder/debootstrap.log"
ssh-keygen -q -t ed25519 -N '' -f "$key"
install -D -m 600 "$key.pub" "$server/root/.ssh/authorized_keys"
echo 'nameserver 10.0.2.3' > "$server/etc/resolv.conf"  # of slirp4netns
echo '127.0.0.1 localhost' > "$server/etc/hosts"
git clone --quiet --bare "$repository" "$server/srv/code.git"
git -C "$server/srv/code.git" branch try "$(git -C "$repository" rev-parse HEAD)"
chown -R root:root "$server/srv/code.git"
"$setup" "$server"

trap clean_up EXIT
ip netns add "$network"
inside ip link set lo up
slirp4netns --configure --netns-type=path "/run/netns/$network" tap0 > "$folder/slirp.log" 2>&1 & slirp=$!
systemd-nspawn --quiet --directory="$server" --register=no --keep-unit --network-namespace-path="/run/netns/$network" \
    --resolv-conf=off --console=pipe --boot > "$folder/console.log" 2>&1 < /dev/null & nspawn=$!
for _ in {1..60}; do on_server true && break; sleep 1; done
on_server systemctl is-system-running --wait || true

apply first
apply second
grep -q '^127.0.0.1 .*changed=0 ' "$folder/second.log"
on_server systemctl is-active postgresql redis-server nginx caddy dailytrain-{migrate,web,worker,beat}.service dailytrain-web.socket
on_server curl --silent --show-error --fail --insecure https://localhost/readyz; echo
on_server curl --silent --show-error --fail --insecure --output /dev/null https://localhost/docs/
on_server dailytrain-manage check

# A new commit: the site restarts, and a visitor sees no error.
code=$server/srv/code.git
commit=$(git -C "$code" -c user.name=Ada -c user.email=ada@example.org commit-tree -p try -m Upgrade 'try^{tree}')
git -C "$code" update-ref refs/heads/try "$commit"
on_server 'while curl --silent --insecure --output /dev/null --write-out "%{http_code}\n" https://localhost/readyz; do sleep 0.2; done' > "$folder/visitor.log" & visitor=$!
apply third
kill "$visitor"
sort "$folder/visitor.log" | uniq --count
test "$(sort -u "$folder/visitor.log")" = 200
on_server systemctl is-active dailytrain-{migrate,web,worker,beat}.service
echo ok
