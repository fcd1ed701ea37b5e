/* A compiler for tests: takes nvcc's or gcc's `-c SOURCE -o OUTPUT -MF DEPFILE`, and does what SOURCE says.
 *
 * A line `//! key=value key=value` of the source holds: seconds (how long), mib (memory of the inner compiler),
 * fail (exit status), say (a word printed on standard error), stubborn=1 (ignore TERM and INT), escape=1 (leave
 * a respawning daemon in a session of its own; 2: one whose environment is wiped, too), die=N (the inner
 * compiler is ended by signal N), curve=A,B,C (MiB that it holds at moments of equal distance, instead of mib),
 * burn=1 (keep a CPU busy, as compilers do, instead of sleeping), needs (a header beside it, which the dependency
 * file is to name).
 * Like nvcc, it works through a shell-like child: compiler -> sh -> cicc.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST_POINTS 256
#define MIB (1L << 20)

struct plan {
  double seconds;
  long mib;
  int fail, stubborn, escape, die, burn, points;
  long curve[MOST_POINTS];
  char say[256], needs[256];
};

static void read_curve(struct plan *plan, char *text) {
  for (char *end; *text && plan->points < MOST_POINTS; text = *end ? end + 1 : end)
    plan->curve[plan->points++] = strtol(text, &end, 10);
}

static struct plan read_plan(const char *path) {
  struct plan plan = {.seconds = 0.05, .mib = 1};
  char line[4096];
  FILE *file = fopen(path, "r");
  if (!file) { fprintf(stderr, "standin: no such file: %s\n", path); exit(1); }
  while (fgets(line, sizeof line, file)) {
    if (strncmp(line, "//!", 3)) continue;
    for (char *word = strtok(line + 3, " \n"); word; word = strtok(NULL, " \n")) {
      char *value = strchr(word, '=');
      if (!value) continue;
      *value++ = 0;
      if (!strcmp(word, "seconds")) plan.seconds = atof(value);
      else if (!strcmp(word, "mib")) plan.mib = atol(value);
      else if (!strcmp(word, "curve")) read_curve(&plan, value);
      else if (!strcmp(word, "fail")) plan.fail = atoi(value);
      else if (!strcmp(word, "stubborn")) plan.stubborn = atoi(value);
      else if (!strcmp(word, "escape")) plan.escape = atoi(value);
      else if (!strcmp(word, "burn")) plan.burn = atoi(value);
      else if (!strcmp(word, "die")) plan.die = atoi(value);
      else if (!strcmp(word, "needs")) snprintf(plan.needs, sizeof plan.needs, "%s", value);
      else if (!strcmp(word, "say")) snprintf(plan.say, sizeof plan.say, "%s", value);
    }
  }
  fclose(file);
  return plan;
}

static void be_stubborn(void) { signal(SIGTERM, SIG_IGN); signal(SIGINT, SIG_IGN); signal(SIGHUP, SIG_IGN); }

extern char **environ;

static void wipe_environment(void) { /* what /proc/PID/environ shows is this very memory */
  for (char **entry = environ; *entry; entry++) memset(*entry, 0, strlen(*entry));
}

static void escape(int wipe) { /* a daemon that replaces itself ten times a second */
  if (fork()) return;
  setsid();
  if (wipe) wipe_environment();
  prctl(PR_SET_NAME, "escapee");
  be_stubborn();
  for (;;) { usleep(100000); if (fork()) _exit(0); setsid(); }
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

static void let_pass(const struct plan *plan, double seconds) {
  double end = now() + seconds;
  if (plan->burn) while (now() < end);
  else usleep((useconds_t)(seconds * 1e6));
}

static void hold(char *memory, long before, long after) { /* grow to, or let go down to, `after` bytes */
  if (after > before) memset(memory + before, 1, after - before);
  if (after < before) madvise(memory + after, before - after, MADV_DONTNEED);
}

static void follow(const struct plan *plan) { /* between two points it rises, or falls, steadily */
  long most = 1, held = 0;
  for (int point = 0; point < plan->points; point++) most = plan->curve[point] > most ? plan->curve[point] : most;
  char *memory = mmap(NULL, most * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) { fprintf(stderr, "standin: out of memory\n"); exit(1); }
  double begun = now(), share;
  while ((share = (now() - begun) / plan->seconds) < 1) {
    double place = share * plan->points;
    int point = (int)place;
    long from = point ? plan->curve[point - 1] : 0;
    long wanted = (long)((from + (plan->curve[point] - from) * (place - point)) * MIB) & ~4095L;
    hold(memory, held, wanted);
    held = wanted;
    let_pass(plan, 0.05);
  }
}

static void rise_and_stay(const struct plan *plan) { /* it grows for half of its life, as compilers do */
  size_t size = (size_t)plan->mib << 20;
  char *memory = malloc(size + 1);
  if (!memory) exit(1);
  for (int step = 0; step < 16; step++) {
    memset(memory + size / 16 * step, 1, size / 16);
    let_pass(plan, plan->seconds / 32);
  }
  __asm__ volatile("" : : "r"(memory) : "memory"); /* or an optimizer leaves it all out */
  let_pass(plan, plan->seconds / 2);
}

static int compile(const struct plan *plan) { /* the inner compiler: holds its memory for a while */
  prctl(PR_SET_NAME, "cicc");
  if (plan->points) follow(plan);
  else rise_and_stay(plan);
  if (plan->die) raise(plan->die);
  return plan->fail;
}

static int through_shell(const struct plan *plan) { /* as nvcc does it: sh -c cicc */
  pid_t shell = fork();
  if (!shell) {
    prctl(PR_SET_NAME, "sh");
    pid_t inner = fork();
    if (!inner) _exit(compile(plan));
    int status;
    waitpid(inner, &status, 0);
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
  }
  int status;
  waitpid(shell, &status, 0);
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WEXITSTATUS(status);
}

static void print_character(FILE *file, char one) { /* as nvcc does, which escapes spaces only */
  fprintf(file, one == ' ' ? "\\%c" : "%c", one);
}

static void print_path(FILE *file, const char *path) {
  for (; *path; path++) print_character(file, *path);
}

int main(int argc, char **argv) {
  const char *source = NULL, *output = NULL, *depfile = NULL;
  for (int i = 1; i < argc; i++) {
    if (!strncmp(argv[i], "-dump", 5)) { puts("12.2.0"); return 0; } /* it may stand for a host compiler, too */
    if (!strcmp(argv[i], "--version")) { puts("standin, release 13.0, V13.0.88"); return 0; }
    if (!strcmp(argv[i], "-o") && i + 1 < argc) output = argv[++i];
    else if ((!strcmp(argv[i], "-MF") || !strcmp(argv[i], "--dependency-output")) && i + 1 < argc) depfile = argv[++i];
    else if (!strcmp(argv[i], "-MT") && i + 1 < argc) i++;
    else if (argv[i][0] != '-') source = argv[i];
  }
  if (!source || !output) { fprintf(stderr, "standin: nothing to do\n"); return 1; }
  struct plan plan = read_plan(source);
  if (plan.stubborn) be_stubborn();
  if (plan.escape) escape(plan.escape > 1);

  char temporary[4096];
  snprintf(temporary, sizeof temporary, "%s/tmpxft_%d", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", getpid());
  FILE *file = fopen(temporary, "w");
  if (file) { fputs("intermediate\n", file); fclose(file); }
  FILE *object = fopen(output, "w"); /* half written for as long as it takes, as a real compiler's is */
  if (!object) { fprintf(stderr, "standin: cannot write %s\n", output); return 1; }
  fputs("half", object);
  fflush(object);

  int status = through_shell(&plan);
  if (plan.say[0]) fprintf(stderr, "%s(1): error: %s\n", source, plan.say);
  if (status > 128) fprintf(stderr, "nvcc error   : 'cicc' died due to signal %d \n", status - 128);
  unlink(temporary);
  if (status) return status > 128 ? status - 128 : status;
  fputs(" whole\n", object);
  fclose(object);
  if (depfile && (file = fopen(depfile, "w"))) {
    print_path(file, output);
    fputs(": ", file);
    print_path(file, source);
    if (plan.needs[0]) {
      fputc(' ', file);
      char *end = strrchr(source, '/');
      for (const char *at = source; end && at <= end; at++) print_character(file, *at);
      print_path(file, plan.needs);
    }
    fputs("\n", file);
    fclose(file);
  }
  return 0;
}
