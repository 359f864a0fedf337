/* The process that holds a pod's sandbox: reaps orphans, ends on SIGTERM or SIGINT. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "-v") == 0) {
    puts("pause " VERSION);
    return 0;
  }
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGCHLD);
  sigaddset(&wanted, SIGINT);
  sigaddset(&wanted, SIGTERM);
  /* Blocked signals wait for sigwait, also for PID 1, where the kernel drops those left at their default. */
  if (sigprocmask(SIG_BLOCK, &wanted, NULL) != 0)
    return 1;
  for (int caught = SIGCHLD; caught == SIGCHLD;) {
    while (waitpid(-1, NULL, WNOHANG) > 0)
      ;
    if (sigwait(&wanted, &caught) != 0)
      return 1;
  }
  return 0;
}
