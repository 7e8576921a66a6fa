# The first process inside a boundary prepares what is private to it, and becomes `pause`. All mounts are of this mount namespace alone.
#
#   boundary.sh FOLDER BINARIES INTERFACE-READY-FILE
set -eu
folder=$1 binaries=$2

# First under a name that nothing hides, for either may be below what is hidden next.
mkdir -p "$folder/hold" && mount -n -t tmpfs tmpfs "$folder/hold"
mkdir "$folder/hold/cluster" "$folder/hold/binaries" "$folder/hold/overlay"
mount -n --bind "$folder" "$folder/hold/cluster"
mount -n --bind "$binaries" "$folder/hold/binaries"
# containerd, CNI and the kubelet write below these, whatever their options say.
for path in /var/lib /var/log; do
    over=$folder/hold/overlay$path
    mkdir -p "$over/upper" "$over/work"
    mount -n -t overlay overlay -o "lowerdir=$path,upperdir=$over/upper,workdir=$over/work" "$path"
done
mount -n --move "$folder/hold" /run

# The kubelet sets these; what it finds as it wants it, it leaves alone. The machine's own are not touched.
for pair in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=/run/sysctl-$(echo "${pair%=*}" | tr / -)
    echo "${pair#*=}" >"$file"
    mount -n --bind "$file" "/proc/sys/${pair%=*}"
done
mount -n --bind /run/cluster/machine /sys/devices/system/node

ip link set lo up
echo 1 >/proc/sys/net/ipv4/ip_forward
[ ! -e /proc/sys/net/bridge/bridge-nf-call-iptables ] || echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
touch /run/cluster/prepared
exec /run/binaries/pause
