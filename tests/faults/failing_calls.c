// SPDX-License-Identifier: Apache-2.0
// Preloaded: makes the n-th open, write, fsync or rename below one folder fail, for C and Python alike.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096];
static long count, fail_number;  // of the calls since `arm`; 0 never fails
static int fail_errno;
static char failed_call[64];

void arm(const char *below, long number, int error) {
  snprintf(folder, sizeof folder, "%s", below);
  count = 0;
  fail_number = number;
  fail_errno = error;
  failed_call[0] = 0;
}
long disarm(void) {
  folder[0] = 0;
  return count;
}
const char *which(void) { return failed_call; }

static int fails(const char *call) {
  if (++count != fail_number) return 0;
  snprintf(failed_call, sizeof failed_call, "%s", call);
  errno = fail_errno;
  return 1;
}
static int below(const char *path) {
  return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0;
}
static int path_of(int fd, char *out, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, out, size - 1);
  if (length < 0) return 0;
  out[length] = 0;
  return 1;
}
static int fd_below(int fd) {
  char path[4096];
  if (!folder[0]) return 0;
  return path_of(fd, path, sizeof path) && below(path);
}
static int at_below(int fd, const char *path) {
  return path && path[0] == '/' ? below(path) : fd != AT_FDCWD && fd_below(fd);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE                         \
  va_list rest;                      \
  va_start(rest, flags);             \
  mode_t mode = va_arg(rest, mode_t); \
  va_end(rest);
#define OPEN(name)                                                         \
  int name(const char *path, int flags, ...) {                             \
    MODE return below(path) && fails("open") ? -1 : REAL(name)(path, flags, mode); \
  }
#define OPENAT(name)                                                       \
  int name(int fd, const char *path, int flags, ...) {                     \
    MODE return at_below(fd, path) && fails("open") ? -1 : REAL(name)(fd, path, flags, mode); \
  }
#define ON_FD(type, name, call, declared, given) \
  type name declared { return fd_below(fd) && fails(call) ? -1 : REAL(name) given; }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
ON_FD(ssize_t, write, "write", (int fd, const void *data, size_t size), (fd, data, size))
ON_FD(ssize_t, pwrite, "write", (int fd, const void *d, size_t n, off_t o), (fd, d, n, o))
ON_FD(ssize_t, pwrite64, "write", (int fd, const void *d, size_t n, off64_t o), (fd, d, n, o))
ON_FD(ssize_t, writev, "write", (int fd, const struct iovec *v, int n), (fd, v, n))
ON_FD(int, fsync, "fsync", (int fd), (fd))
ON_FD(int, fdatasync, "fsync", (int fd), (fd))
int rename(const char *from, const char *to) {
  return below(from) && fails("rename") ? -1 : REAL(rename)(from, to);
}
int renameat(int fd, const char *from, int other, const char *to) {
  return at_below(fd, from) && fails("rename") ? -1 : REAL(renameat)(fd, from, other, to);
}
