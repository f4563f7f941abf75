/* A wall clock that a test moves: preloaded into a server, it adds to the time of day what the
 * file named by STEPPED_CLOCK holds, in microseconds. Clocks that only count are left alone. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_us;

__attribute__((constructor)) static void open_file(void) {
    const char *path = getenv("STEPPED_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(0, sizeof *offset_us, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) _exit(101);
    offset_us = page;
}

static int64_t now_ns(clockid_t clock) {
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    return real.tv_sec * 1000000000LL + real.tv_nsec + (offset_us ? *offset_us * 1000 : 0);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, at);
    int64_t now = now_ns(clock);
    at->tv_sec = now / 1000000000;
    at->tv_nsec = now % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    int64_t now = now_ns(CLOCK_REALTIME);
    at->tv_sec = now / 1000000000;
    at->tv_usec = now % 1000000000 / 1000;
    return 0;
}

time_t time(time_t *at) {
    time_t now = now_ns(CLOCK_REALTIME) / 1000000000;
    if (at) *at = now;
    return now;
}
