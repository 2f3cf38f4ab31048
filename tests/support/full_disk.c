/* Loaded before a program (LD_PRELOAD): while the file $FULL_DISK exists, no file can grow, and ENOSPC says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int lacks_space(int fd, off_t end) {
    struct stat about;
    const char *flag = getenv("FULL_DISK");
    return flag && access(flag, F_OK) == 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && end > about.st_size;
}

static off_t sum_lengths(const struct iovec *parts, int count) {
    off_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

#define REFUSE_GROWTH(end) \
    if (lacks_space(fd, end)) { errno = ENOSPC; return -1; }
#define ORIGINAL(name, ...) ((ssize_t(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *bytes, size_t count) {
    REFUSE_GROWTH(lseek(fd, 0, SEEK_CUR) + (off_t)count)
    return ORIGINAL(write, int, const void *, size_t)(fd, bytes, count);
}

#define POSITIONED(name) \
    ssize_t name(int fd, const void *bytes, size_t count, off_t at) { \
        REFUSE_GROWTH(at + (off_t)count) \
        return ORIGINAL(name, int, const void *, size_t, off_t)(fd, bytes, count, at); \
    }
#define VECTORED(name) \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t at) { \
        REFUSE_GROWTH(at + sum_lengths(parts, count)) \
        return ORIGINAL(name, int, const struct iovec *, int, off_t)(fd, parts, count, at); \
    }
#define ALLOCATING(name) \
    int name(int fd, off_t at, off_t count) { \
        if (lacks_space(fd, at + count)) return ENOSPC; \
        return (int)ORIGINAL(name, int, off_t, off_t)(fd, at, count); \
    }

POSITIONED(pwrite)
POSITIONED(pwrite64)
VECTORED(pwritev)
VECTORED(pwritev64)
ALLOCATING(posix_fallocate)
ALLOCATING(posix_fallocate64)
