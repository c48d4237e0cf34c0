/* A wall clock that a test sets, for the processes that preload this; monotonic time stays.
 *
 * JUMPING_CLOCK names a file of eight bytes: seconds by which the clock is ahead. What waits until a time of day is
 * told the machine's own, so that it waits for as long as it would after the clock of a whole machine was set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("JUMPING_CLOCK");
  int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) abort();
  void *mapped = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) abort();
  ahead = mapped;
  close(file);
}

static int64_t offset(void) { return ahead ? *ahead : 0; }

/* A deadline as the machine's clock has it; one of monotonic time is far below the time of day. */
static const struct timespec *real(const struct timespec *until, struct timespec *changed) {
  if (!until || until->tv_sec < 1000000000) return until;
  changed->tv_sec = until->tv_sec - offset();
  changed->tv_nsec = until->tv_nsec;
  return changed;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
  int result = next(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
  return result;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec spec;
  (void)zone;
  int result = clock_gettime(CLOCK_REALTIME, &spec);
  now->tv_sec = spec.tv_sec;
  now->tv_usec = spec.tv_nsec / 1000;
  return result;
}

time_t time(time_t *now) {
  struct timespec spec;
  clock_gettime(CLOCK_REALTIME, &spec);
  if (now) *now = spec.tv_sec;
  return spec.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec changed;
  if (!next) next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!next) next = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  return next(condition, mutex, real(until, &changed));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  static int (*next)(sem_t *, const struct timespec *);
  struct timespec changed;
  if (!next) next = dlsym(RTLD_NEXT, "sem_timedwait");
  return next(semaphore, real(until, &changed));
}

long syscall(long number, ...) {
  static long (*next)(long, ...);
  struct timespec changed;
  long given[6];
  va_list arguments;
  va_start(arguments, number);
  for (int i = 0; i < 6; i++) given[i] = va_arg(arguments, long);
  va_end(arguments);
  if (!next) next = dlsym(RTLD_NEXT, "syscall");
  if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME))
    given[3] = (long)real((const struct timespec *)given[3], &changed);
  return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
