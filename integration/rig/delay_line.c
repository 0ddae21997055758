// A switch whose wires are long: carries packets between the TUN devices of namespaces,
// each one later by a constant delay, at the rate of the port that it leaves through.
//
//     delay_line ONE_WAY_DELAY_US
//
// It is told line by line what to do, answers each line with one, and ends with its
// input: `add NAMESPACE_FILE` (makes eth0 there, as the next port), `rate PORT
// BITS_PER_S QUEUE_BYTES` (0 bits: no limit), `cut PORT`, `part PORT PORT`, `stats`.
//
// Since all delays are equal, "first the delay, then the queue of the port" and "first
// the queue, then the delay" are the same to a receiver. So each port has one queue in
// the order of arrival, and a packet's time of release is known when it comes in.
// Packets travel with the offload header of the kernel, unsegmented, which is what makes
// it cheap; a port charges the headers that segmentation would have added.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PORTS = 64, MAX_PACKET = 1 << 17, BATCH = 64, CONTROL = MAX_PORTS };

struct packet {
    struct packet *next;
    int64_t due_ns;
    size_t length;
    unsigned char data[];
};

struct port {
    int fd, is_cut;
    int64_t bits_per_s, queue_bytes, waiting_bytes, free_at_ns;
    struct packet *first, *last;
    uint64_t packets, bytes, drops;
};

static struct port ports[MAX_PORTS];
static uint64_t parted[MAX_PORTS];  // bit sets of the ports that a port cannot reach
static int num_ports, poll_fd;
static int64_t delay_ns, grain_ns;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int watch(int fd, int number) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)number};
    return epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
}

static int add_port(const char *namespace_file) {
    if (num_ports == MAX_PORTS) return errno = ENOSPC, -1;
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int there = open(namespace_file, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET)) return -1;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (setns(home, CLONE_NEWNET) || fd < 0) return -1;
    close(home);
    close(there);
    struct ifreq request = {.ifr_name = "eth0"};
    request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(fd, TUNSETIFF, &request)) return -1;
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) return -1;
    if (watch(fd, num_ports)) return -1;
    ports[num_ports] = (struct port){.fd = fd};
    return num_ports++;
}

// What a packet takes on an Ethernet wire, in bytes. The header's own `hdr_len` is a hint.
static int64_t wire_bytes(const unsigned char *data, size_t length) {
    const struct virtio_net_hdr *offload = (const void *)data;
    const unsigned char *ip = data + sizeof *offload, *tcp = ip + (ip[0] & 15) * 4;
    int64_t size = (int64_t)(length - sizeof *offload), segments = 1;
    if (offload->gso_type != VIRTIO_NET_HDR_GSO_NONE && offload->gso_size) {
        int64_t headers = (tcp - ip) + (tcp[12] >> 4) * 4;
        segments = (size - headers + offload->gso_size - 1) / offload->gso_size;
        size += (segments - 1) * headers;
    }
    return size + segments * 14;
}

static void accept_packet(int source, const unsigned char *data, size_t length) {
    const unsigned char *ip = data + sizeof(struct virtio_net_hdr);
    if (length < sizeof(struct virtio_net_hdr) + 20 || ip[0] >> 4 != 4) return;
    int target = ip[19] - 1;  // addresses of a rig end in the port's number plus one
    if (target < 0 || target >= num_ports) return;
    struct port *port = &ports[target];
    if (port->is_cut || ports[source].is_cut || parted[source] >> target & 1) return;
    int64_t now = now_ns(), start = now, size = wire_bytes(data, length);
    if (port->bits_per_s) {
        start = port->free_at_ns > now ? port->free_at_ns : now;
        int64_t queued = (start - now) / 1000 * port->bits_per_s / 8000000;
        if (queued + size > port->queue_bytes) { port->drops++; return; }
        start += size * 8000000000LL / port->bits_per_s;
        port->free_at_ns = start;
    } else if (port->waiting_bytes > 1LL << 28) {
        port->drops++;
        return;
    }
    struct packet *packet = malloc(sizeof *packet + length);
    if (!packet) { port->drops++; return; }
    *packet = (struct packet){.due_ns = start + delay_ns, .length = length};
    memcpy(packet->data, data, length);
    if (port->first) port->last->next = packet;
    else port->first = packet;
    port->last = packet;
    port->waiting_bytes += size;
}

static void read_packets(int source) {
    static unsigned char data[MAX_PACKET];
    for (int i = 0; i < BATCH; i++) {
        ssize_t length = read(ports[source].fd, data, sizeof data);
        if (length < 0) return;
        accept_packet(source, data, (size_t)length);
    }
}

// Releases what is due at a port; returns when it must be looked at again.
static int64_t release(struct port *port, int64_t now) {
    for (struct packet *packet; (packet = port->first); free(packet)) {
        if (packet->due_ns - grain_ns > now) return packet->due_ns - grain_ns;
        port->first = packet->next;
        int64_t size = wire_bytes(packet->data, packet->length);
        port->waiting_bytes -= size;
        if (port->is_cut || write(port->fd, packet->data, packet->length) < 0) {
            port->drops++;
            continue;
        }
        port->packets++;
        port->bytes += (uint64_t)size;
    }
    return INT64_MAX;
}

static void print_stats(void) {
    uint64_t packets = 0, bytes = 0, drops = 0;
    struct rusage used;
    for (int i = 0; i < num_ports; i++) {
        packets += ports[i].packets;
        bytes += ports[i].bytes;
        drops += ports[i].drops;
    }
    getrusage(RUSAGE_SELF, &used);
    double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                   1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    printf("{\"packets\": %llu, \"bytes\": %llu, \"drops\": %llu, \"cpu_s\": %.6f}\n",
           (unsigned long long)packets, (unsigned long long)bytes,
           (unsigned long long)drops, cpu_s);
}

static int is_port(int number) { return number >= 0 && number < num_ports; }

static void obey(const char *line) {
    char file[256];
    long long bits, queue;
    int a, b, done = 1;
    errno = EINVAL;
    if (!strncmp(line, "stats", 5)) return print_stats();
    if (sscanf(line, "add %255s", file) == 1) {
        done = add_port(file) >= 0;
    } else if (sscanf(line, "rate %d %lld %lld", &a, &bits, &queue) == 3 && is_port(a)) {
        ports[a].bits_per_s = bits;
        ports[a].queue_bytes = queue;
    } else if (sscanf(line, "cut %d", &a) == 1 && is_port(a)) {
        ports[a].is_cut = 1;
    } else if (sscanf(line, "part %d %d", &a, &b) == 2 && is_port(a) && is_port(b)) {
        parted[a] |= 1ULL << b;
        parted[b] |= 1ULL << a;
    } else {
        done = 0;
    }
    puts(done ? "done" : strerror(errno));
}

// Whether there may be more to be told.
static int read_commands(void) {
    static char text[4096];
    static size_t length;
    ssize_t count = read(0, text + length, sizeof text - 1 - length);
    if (count <= 0) return 0;
    length += (size_t)count;
    text[length] = 0;
    for (char *end; (end = strchr(text, '\n')); ) {
        *end = 0;
        obey(text);
        length -= (size_t)(end + 1 - text);
        memmove(text, end + 1, length + 1);
    }
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "delay_line ONE_WAY_DELAY_US\n"), 2;
    delay_ns = atoll(argv[1]) * 1000;
    // Packets are looked at together, this late, and released as much early: 4% of the
    // delay, which saves waking up for each.
    grain_ns = delay_ns / 25;
    grain_ns = grain_ns < 20000 ? 20000 : grain_ns > 200000 ? 200000 : grain_ns;
    prctl(PR_SET_TIMERSLACK, 1000);
    setpriority(PRIO_PROCESS, 0, -20);  // a wire does not wait for busy computers
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (poll_fd < 0 || watch(0, CONTROL)) return perror("epoll"), 1;
    for (;;) {
        struct epoll_event events[MAX_PORTS + 1];
        int64_t now = now_ns(), next = INT64_MAX;
        for (int i = 0; i < num_ports; i++) {
            int64_t due = release(&ports[i], now);
            next = due < next ? due : next;
        }
        int64_t wait = next - now;
        struct timespec grain = {.tv_nsec = grain_ns};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &grain, NULL);
        wait = wait > grain_ns ? wait - grain_ns : 0;
        struct timespec timeout = {wait / 1000000000, wait % 1000000000};
        int count = epoll_pwait2(poll_fd, events, MAX_PORTS + 1,
                                 next == INT64_MAX ? NULL : &timeout, NULL);
        for (int i = 0; i < count; i++) {
            int number = (int)events[i].data.u32;
            if (number != CONTROL) read_packets(number);
            else if (!read_commands()) return 0;
        }
    }
}
