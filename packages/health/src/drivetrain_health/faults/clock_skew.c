// A wall clock that is wrong, for the processes that preload this library.
//
//     DRIVETRAIN_FAULT_CLOCK="OFFSET_NS DRIFT ORIGIN_NS"
//
// What a process reads is the true time, plus the offset, plus the drift for each second
// since the origin. Deadlines on the wall clock go the other way: the kernel waits for
// the true time, and the process means its own. The monotonic clock is left alone.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

// Who calls does not always say of which clock a deadline is. No machine has been up for
// so many seconds, and the wall clock is beyond; those over the second number are
// "never".
#define LONGEST_UP_S 500000000
#define NEVER_S 9000000000

static const int64_t SECOND_NS = 1000000000;

static volatile int is_ready;
static long long offset_ns, origin_ns;
static double drift;

static int (*next_clock_gettime)(clockid_t, struct timespec *);
static int (*next_clock_nanosleep)(clockid_t, int, const struct timespec *,
                                   struct timespec *);
static int (*next_cond_timedwait)(pthread_cond_t *, pthread_mutex_t *,
                                  const struct timespec *);
static int (*next_mutex_timedlock)(pthread_mutex_t *, const struct timespec *);
static int (*next_sem_timedwait)(sem_t *, const struct timespec *);
static int (*next_timerfd_settime)(int, int, const struct itimerspec *,
                                   struct itimerspec *);
static long (*next_syscall)(long, ...);

// Called first thing by every function, since other libraries may start before this
// one. Two threads that both do it do the same.
static void prepare(void) {
    if (is_ready) return;
    *(void **)&next_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    *(void **)&next_clock_nanosleep = dlsym(RTLD_NEXT, "clock_nanosleep");
    *(void **)&next_cond_timedwait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    *(void **)&next_mutex_timedlock = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    *(void **)&next_sem_timedwait = dlsym(RTLD_NEXT, "sem_timedwait");
    *(void **)&next_timerfd_settime = dlsym(RTLD_NEXT, "timerfd_settime");
    *(void **)&next_syscall = dlsym(RTLD_NEXT, "syscall");
    const char *text = getenv("DRIVETRAIN_FAULT_CLOCK");
    if (text && sscanf(text, "%lld %lf %lld", &offset_ns, &drift, &origin_ns) != 3) {
        fprintf(stderr, "DRIVETRAIN_FAULT_CLOCK is not a clock: %s\n", text);
        abort();
    }
    is_ready = 1;
}

__attribute__((constructor)) static void start(void) { prepare(); }

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
           clock == CLOCK_TAI;
}

static struct timespec from_ns(int64_t ns) {
    struct timespec at = {ns / SECOND_NS, ns % SECOND_NS};
    if (at.tv_nsec < 0) {
        at.tv_sec -= 1;
        at.tv_nsec += SECOND_NS;
    }
    return at;
}

static struct timespec as_process_sees(struct timespec at) {
    int64_t ns = at.tv_sec * SECOND_NS + at.tv_nsec;
    return from_ns(ns + offset_ns + (int64_t)(drift * (double)(ns - origin_ns)));
}

// Returns the deadline for the kernel: `at` itself, or its true time in `place`.
static const struct timespec *as_kernel_sees(const struct timespec *at,
                                             struct timespec *place) {
    prepare();
    if (!at || at->tv_sec < LONGEST_UP_S || at->tv_sec > NEVER_S) return at;
    int64_t ns = at->tv_sec * SECOND_NS + at->tv_nsec;
    double since_ns = (double)(ns - origin_ns - offset_ns);
    *place = from_ns(origin_ns + (int64_t)(since_ns / (1 + drift)));
    return place;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    prepare();
    int status = next_clock_gettime(clock, at);
    if (status == 0 && is_wall(clock)) *at = as_process_sees(*at);
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    if (zone) *(struct timezone *)zone = (struct timezone){0, 0};
    int status = clock_gettime(CLOCK_REALTIME, &now);
    if (status == 0 && at) *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return status;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    if (base != TIME_UTC) return 0;
    return clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *at,
                    struct timespec *left) {
    struct timespec place;
    prepare();
    if (is_wall(clock) && (flags & TIMER_ABSTIME)) at = as_kernel_sees(at, &place);
    return next_clock_nanosleep(clock, flags, at, left);
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition,
                           pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict at) {
    struct timespec place;
    at = as_kernel_sees(at, &place);
    return next_cond_timedwait(condition, mutex, at);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex,
                            const struct timespec *restrict at) {
    struct timespec place;
    at = as_kernel_sees(at, &place);
    return next_mutex_timedlock(mutex, at);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
    struct timespec place;
    at = as_kernel_sees(at, &place);
    return next_sem_timedwait(semaphore, at);
}

int timerfd_settime(int descriptor, int flags, const struct itimerspec *next,
                    struct itimerspec *before) {
    struct itimerspec changed;
    struct timespec place;
    if (next && (flags & TFD_TIMER_ABSTIME)) {
        changed = *next;
        changed.it_value = *as_kernel_sees(&next->it_value, &place);
        next = &changed;
    }
    prepare();
    return next_timerfd_settime(descriptor, flags, next, before);
}

// Abseil, and gRPC on top of it, waits on futexes by hand, until a time of the wall clock.
long syscall(long number, ...) {
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) words[i] = va_arg(rest, long);
    va_end(rest);
    prepare();
    struct timespec place;
    if (number == SYS_clock_gettime) {
        return clock_gettime((clockid_t)words[0], (struct timespec *)words[1]);
    }
    if (number == SYS_futex && (words[1] & FUTEX_CLOCK_REALTIME)) {
        words[3] = (long)as_kernel_sees((const struct timespec *)words[3], &place);
    }
    return next_syscall(number, words[0], words[1], words[2], words[3], words[4],
                        words[5]);
}
