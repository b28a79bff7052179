#!/usr/bin/env bash
# A box at work, for people: what it shows, what it withholds, what it stops, how long it takes.
# Usage: tools/demo.sh [path of the sandcrate program]
set -euo pipefail
sandcrate=${1:-sandcrate}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
    printf '$ sandcrate'
    for word in "$@"; do
        case $word in *[!A-Za-z0-9/:,.=-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
    done
    printf '\n'
    local code=0
    "$sandcrate" "$@" || code=$?
    [ "$code" -eq 0 ] || printf '(exit code %s)\n' "$code"
}

say 'A program in a box: the host sees none of it'
show run -- sh -c 'id; hostname; echo "processes: $(ls -d /proc/[0-9]* | wc -l)"; ls -A /home /workspace'

say 'It cannot reach the network, the system or the host'
show run -q -- sh -c 'cat /proc/net/dev | tail -n +3 | cut -d: -f1; touch /usr/bin/x; cat /etc/shadow; ls /root/.ssh; mount -t tmpfs none /mnt'

say 'Memory is limited: this wants 2 GiB of 64 MiB'
show run --memory 64M -- sh -c 'head -c 2147483648 /dev/zero | tail | wc -c'

say 'So are processes: a fork bomb with a limit of 32'
show run --pids-limit 32 --timeout 3s -- sh -c 'b() { b | b & }; b 2>/dev/null; sleep 1; echo still here'

say 'And time: the whole tree ends, whatever it ignores'
show run --timeout 1s -- sh -c 'trap "" TERM INT; (setsid sleep 100 &); echo working; sleep 100'

say 'And disk: 8 MiB and no more'
show run --quota 8M -- sh -c 'head -c 20000000 /dev/zero > big; wc -c big'

say 'What was enforced, as data'
"$sandcrate" run -o json -- true | grep -A400 '"enforcement"' | grep -E '"(control|by)"' | sed 's/^ *//' | paste - - | head -n 8

say 'How long it takes'
count=20
begin=$(date +%s%N)
for _ in $(seq "$count"); do "$sandcrate" run -- true; done
end=$(date +%s%N)
printf '%s boxes made, used and removed from the shell: %s ms each\n' "$count" "$(((end - begin) / count / 1000000))"
