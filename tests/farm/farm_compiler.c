/* A compiler that sccache takes for gcc, small enough to be sent in a moment, which takes the time it is told.
 *
 * `-E` prints the source; `-c SOURCE -o OUTPUT` does what a line `//! key=value key=value` of it says: seconds (how
 * long), burn (1: keep a CPU busy), mib (hold so much memory), fail (1: an error on every machine; 2: where `log` is
 * out of reach), log (a file that exists on the client only: a line `name begin end` for each compile that has ended
 * there, in seconds of the monotonic clock).
 */
#define _GNU_SOURCE
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double seconds, mib;
static int burn, fail;
static char log_path[4096];

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec / 1e9;
}

static FILE *must_open(const char *path, const char *mode) {
  FILE *file = fopen(path, mode);
  if (!file) { perror(path); exit(1); }
  return file;
}

static void read_plan(FILE *file) {
  char line[8192];
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "//!", 3)) continue;
    for (char *word = strtok(line + 3, " \n"); word; word = strtok(NULL, " \n")) {
      char *value = strchr(word, '=');
      if (!value) continue;
      *value++ = 0;
      if (!strcmp(word, "seconds")) seconds = atof(value);
      else if (!strcmp(word, "mib")) mib = atof(value);
      else if (!strcmp(word, "burn")) burn = atoi(value);
      else if (!strcmp(word, "fail")) fail = atoi(value);
      else if (!strcmp(word, "log")) snprintf(log_path, sizeof log_path, "%s", value);
    }
  }
}

static int preprocess(FILE *file) {
  char line[8192];
  int asked = 0; /* sccache asks every compiler what it is */
  while (fgets(line, sizeof line, file)) {
    if (strstr(line, "compiler_id=")) asked = 1;
    else if (!asked) fputs(line, stdout);
  }
  if (asked) puts("compiler_id=gcc\ncompiler_version=1");
  return 0;
}

static void work(double begin) {
  size_t size = (size_t)(mib * (1 << 20));
  char *held = malloc(size + 1);
  for (size_t place = 0; place < size; place += 4096) held[place] = 1;
  while (now() < begin + seconds) {
    double until = now() + 0.0005; /* a compile that does nothing at all would pass for one that hangs */
    while (now() < until);
    if (!burn) usleep(10000);
  }
  free(held);
}

int main(int argc, char **argv) {
  const char *source = NULL, *output = NULL, *depfile = NULL;
  int only_preprocess = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "-o") && i + 1 < argc) output = argv[++i];
    else if (!strcmp(argv[i], "-MF") && i + 1 < argc) depfile = argv[++i];
    else if ((!strcmp(argv[i], "-x") || !strcmp(argv[i], "-MT") || !strcmp(argv[i], "-MQ")) && i + 1 < argc) i++;
    else if (!strcmp(argv[i], "-E")) only_preprocess = 1;
    else if (argv[i][0] != '-') source = argv[i];
  }
  if (!source) return 1; /* nothing else is known: neither -vV nor -print-prog-name */
  double begin = now();
  FILE *file = must_open(source, "r");
  if (depfile) {
    FILE *depends = must_open(depfile, "w");
    fprintf(depends, "%s: %s\n", output ? output : "out", source);
    fclose(depends);
  }
  if (only_preprocess) return preprocess(file);
  read_plan(file);
  int here = *log_path && !access(log_path, W_OK);
  work(begin);
  if (fail == 1 || (fail == 2 && !here)) {
    fprintf(stderr, "%s:1:1: error: it is told to fail\n", source);
    return 1;
  }
  file = must_open(output, "w");
  fputs("whole\n", file);
  fclose(file);
  if (here) {
    file = must_open(log_path, "a");
    setvbuf(file, NULL, _IOFBF, BUFSIZ);
    fprintf(file, "%s %.3f %.3f\n", basename((char *)source), begin, now());
    fclose(file);
  }
  return 0;
}
