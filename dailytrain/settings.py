"""Settings, read from environment variables. Without any, the site works on embedded defaults under `var/`.

An invalid value raises ImproperlyConfigured; `manage.py check` warns of an incomplete configuration.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import dj_database_url
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured
from kombu import Queue  # type: ignore[attr-defined]

from dailytrain.environment import (
    load_or_create_secret,
    read_boolean,
    read_integer,
    read_networks,
    read_number,
    read_text,
    read_words,
)
from dailytrain.logs import build_logging

BASE_DIR = Path(__file__).resolve().parent.parent


# Folder of everything that lives only on this machine: database, files, keys, the local node.
HOME = Path(read_text("DAILYTRAIN_HOME", str(BASE_DIR / "var"))).resolve()
HOME.mkdir(parents=True, exist_ok=True)

# Show error pages with details. Never in production.
DEBUG = read_boolean("DEBUG", False)
# Key of sessions, signatures and authenticator secrets. By default it is created once, below DAILYTRAIN_HOME.
SECRET_KEY = read_text("SECRET_KEY") or load_or_create_secret(HOME / "keys" / "secret_key")
# Origins of forms besides the site itself, with https://.
CSRF_TRUSTED_ORIGINS = read_words("CSRF_TRUSTED_ORIGINS")
# Public address of the site; used in links and in commands to paste.
SITE_URL = read_text("SITE_URL", "http://127.0.0.1:8000").rstrip("/")
# More host names that the site answers to, besides that of SITE_URL and those of the machine itself (health checks).
ALLOWED_HOSTS = read_words("ALLOWED_HOSTS")
ALLOWED_HOSTS += [urlsplit(SITE_URL).hostname or "", "127.0.0.1", "localhost", "[::1]"]
# Name of the site in feeds, calendars and the API.
SITE_NAME = read_text("SITE_NAME", "The Daily Train")

INSTALLED_APPS = [
    "dailytrain.apps.TrainAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.sitemaps",
    "django_celery_beat",
    "template_partials",  # parts of a template by name, as in Django 6
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "ninja",  # and its documentation page, without third-party requests
    "scheduler",
    "scheduler.campaigns",
    "leaderboard",
    "dailytrain",
]

MIDDLEWARE = [
    "dailytrain.logs.RequestLogMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dailytrain.middleware.NullByteMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "dailytrain.middleware.TextGZipMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.middleware.http.ConditionalGetMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "dailytrain.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# --- database ---------------------------------------------------------------------------------------------------------

# Database: postgres://user:password@host/name. The default is for one machine.
DATABASES = {"default": dj_database_url.parse(read_text("DATABASE_URL", f"sqlite:///{HOME / 'db.sqlite3'}"))}
# Password of the database, if it is not part of DATABASE_URL.
if password := read_text("DATABASE_PASSWORD"):
    DATABASES["default"]["PASSWORD"] = password
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # Writers wait for each other instead of failing half-way through a transaction.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # Tests use a file, because threads and a live server share it.
    DATABASES["default"]["TEST"] = {"NAME": str(HOME / "test.sqlite3")}
# Connections to PostgreSQL of one web process. 0: a new one for each request. Not for Celery, whose workers fork.
elif pool := read_integer("DATABASE_POOL", 0):
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 1, "max_size": pool}
# A connection that PostgreSQL has closed, for example by a restart, is replaced before its next request.
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]

# --- web server ---------------------------------------------------------------------------------------------------

# Addresses and networks of the proxies in front of the web processes. Only they may name the visitor's address and
# scheme (X-Forwarded-For, X-Forwarded-Proto); behind an unnamed proxy all visitors share its address and rate limits.
TRUSTED_PROXIES = read_networks("TRUSTED_PROXIES", "127.0.0.1 ::1")
# Threads of one web process for pages and API calls (`dailytrain/asgi.py`).
WEB_THREADS = read_integer("WEB_THREADS", 4)
# Threads of one web process for files and for requests for runs.
WEB_FILE_THREADS = read_integer("WEB_FILE_THREADS", 16)
# Size limit of a request's body. Uploads of nodes have BLOB_MAX_BYTES, webhooks GITHUB_WEBHOOK_MAX_BYTES.
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 2**20

# --- broker, background work, caches ------------------------------------------------------------------------------

# Broker of Celery, and the cache that web processes share. `manage.py run` embeds a server at the default address.
REDIS_URL = read_text("REDIS_URL", f"redis+socket://{HOME / 'redis' / 'redis.sock'}")
EMBEDDED_REDIS = HOME / "redis" / "redis.sock"
EMBEDDED_REDIS_URL = f"redis+socket://{EMBEDDED_REDIS}"
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "socket_connect_timeout": 2,
    "max_retries": 0,  # a request that sends a task does not wait for a broker that is down
}
# Tasks of minutes to hours wait in a queue of their own. A worker without --queues takes both.
CELERY_TASK_QUEUES = [Queue(name) for name in ("short", "long")]  # type: ignore[no-untyped-call]
CELERY_TASK_DEFAULT_QUEUE = "short"
CELERY_TASK_ROUTES = {
    "leaderboard.tasks.process_long_message": {"queue": "long"},
    "leaderboard.tasks.process_due_long_messages": {"queue": "long"},
    "scheduler.campaigns.tasks.produce_packets": {"queue": "long"},
    "scheduler.campaigns.tasks.update_shards": {"queue": "long"},
}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1  # a busy process holds no task that another could do
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_TIMEZONE = "UTC"

CACHES = {
    # Pages, rate limits, sign-in, pictures. Web processes share it where REDIS_URL is set, while Redis answers.
    "default": {
        "BACKEND": "dailytrain.cache.FallbackCache",
        "LOCATION": REDIS_URL.replace("redis+socket://", "unix://").partition("?")[0],
        "KEY_PREFIX": "dailytrain",
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 0.5, "SOCKET_TIMEOUT": 0.5},
    }
    if read_text("REDIS_URL")
    else {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 10_000}},
    # Tokens and answers of GitHub. They never leave the memory of the process.
    "github": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "github",
        "OPTIONS": {"MAX_ENTRIES": 500},
    },
}
# Cache lifetime of pages for visitors without an account, in seconds; 0 renders every page anew.
PAGE_CACHE_SECONDS = read_integer("PAGE_CACHE_SECONDS", 5)

# --- files --------------------------------------------------------------------------------------------------------

# Bucket of checkpoints and weights, which visitors then download from there; empty: a folder of DAILYTRAIN_HOME.
S3_BUCKET = read_text("S3_BUCKET")
STORAGES = {
    "default": (
        {
            "BACKEND": "storages.backends.s3.S3Storage",
            # Address of the S3 service; empty: Amazon's.
            "OPTIONS": {"bucket_name": S3_BUCKET, "endpoint_url": read_text("S3_ENDPOINT_URL") or None},
        }
        if S3_BUCKET
        else {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(HOME / "storage")}}
    ),
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedStaticFilesStorage"},
}
# Folder of incomplete uploads of nodes; best on the disk of the storage.
UPLOADS = HOME / "uploads"
# Size limit of one file of a node, for jobs whose track has no computed size.
BLOB_MAX_BYTES = read_integer("BLOB_MAX_BYTES", 16 * 2**30)
# The same for all files of one lease; superseded checkpoints do not count.
LEASE_MAX_BYTES = read_integer("LEASE_MAX_BYTES", 256 * 2**30)
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
# Folder of `collectstatic`, whose compressed files are then served.
STATIC_ROOT = read_text("STATIC_ROOT", str(HOME / "static"))
Path(STATIC_ROOT).mkdir(parents=True, exist_ok=True)  # WhiteNoise warns of a missing folder
# Without STATIC_ROOT, static files are served from the checkout; with it, those that `collectstatic` compressed there.
WHITENOISE_USE_FINDERS = not read_text("STATIC_ROOT")
# Folder of the documentation that `make docs` built. It must be named docs, and is served at /docs/.
DOCS_FOLDER = Path(read_text("DOCS_FOLDER", str(BASE_DIR / "build" / "docs")))
WHITENOISE_ROOT = str(DOCS_FOLDER.parent) if DOCS_FOLDER.is_dir() else None
WHITENOISE_INDEX_FILE = True

# --- jobs, runs and campaigns -------------------------------------------------------------------------------------

# {kind of job: dotted path of its handler} (`scheduler/job_kinds.py`).
JOB_KINDS = {
    "train": "leaderboard.job_handlers.train.TrainHandler",
    "score": "leaderboard.job_handlers.score.ScoreHandler",
    "replay": "leaderboard.job_handlers.replays.ReplayHandler",
    "notebook": "leaderboard.job_handlers.notebooks.NotebookHandler",
    "smoke": "leaderboard.job_handlers.smoke.SmokeTestHandler",
    "generate": "leaderboard.job_handlers.generation.GenerationHandler",
    "rephrase": "scheduler.campaigns.sessions.RephraseSessionHandler",
    "swarm": "leaderboard.job_handlers.swarm.SwarmHandler",
    "seat": "leaderboard.job_handlers.swarm.SeatHandler",
    "swarm_sample": "leaderboard.job_handlers.swarm_sample.SwarmSampleHandler",
    "self_test": "scheduler.self_tests.SelfTestHandler",
}
# Authors whose code gets a smoke test before a maintainer has reviewed it, on trusted nodes, in the sandbox:
# "nobody", "known" (signed in, or approved before) or "anyone".
SMOKE_UNAPPROVED = read_text("SMOKE_UNAPPROVED", "known")
if SMOKE_UNAPPROVED not in ("nobody", "known", "anyone"):
    raise ImproperlyConfigured(f"SMOKE_UNAPPROVED is {SMOKE_UNAPPROVED!r}: it must be nobody, known or anyone.")
# Prompts an hour that the pool answers, of all visitors together; 0 disables the page.
GENERATE_PER_HOUR = read_integer("GENERATE_PER_HOUR", 60)
# Prompts that may wait for a node at a time.
GENERATE_WAITING = read_integer("GENERATE_WAITING", 20)
# Time limit of one prompt in wall seconds, loading the model included.
GENERATE_SECONDS = read_number("GENERATE_SECONDS", 180)
# {kind of message: dotted path of its handler} (`leaderboard/outbox.py`).
OUTBOX_HANDLERS: dict[str, str] = {
    "github.delivery": "leaderboard.integrations.github.deliveries.process_delivery",
    "github.follow": "leaderboard.integrations.github.sync.sync_pull_request",
    "github.command": "leaderboard.integrations.github.slash_commands.run_commands",
    "github.comment": "leaderboard.integrations.github.comments.update_comment",
    "github.check": "leaderboard.integrations.github.comments.update_check",
    "github.answer": "leaderboard.integrations.github.comments.post_answer",
    "github.ruling": "leaderboard.integrations.github.comments.post_ruling",
    "github.commit": "leaderboard.integrations.github.commit_status.update_status",
    "run.request": "leaderboard.api.run_requests.process_run_request",
    "notice": "leaderboard.notifications.delivery.send_notice",
    "hub": "leaderboard.publishing.publications.upload_publication",
    "hub.dataset": "leaderboard.publishing.datasets.publish",
}
# Function that lists the tracks to which a node can be restricted (`scheduler.job_kinds.list_tracks`).
POOL_TRACKS = "leaderboard.runs.list_pool_tracks"
# Image of the node agent (Dockerfile, target `node`), best by its digest (name@sha256:...), for a command with Docker.
NODE_IMAGE = read_text("NODE_IMAGE", "")
# The same for volunteers of the dataset swarm, on a campaign's page (Dockerfile, target `volunteer`).
VOLUNTEER_IMAGE = read_text("VOLUNTEER_IMAGE", "")
# Folder of the wheel that this site serves (`manage.py build_wheel`). The commands on its pages install it.
WHEELS = Path(read_text("WHEELS", str(HOME / "wheels")))
# The package's name on a package index, if pages should name that instead of the site's wheel.
PACKAGE_NAME = read_text("PACKAGE_NAME", "")
# Address or path of the repository whose `main` is trained every night.
MAIN_REPOSITORY = read_text("MAIN_REPOSITORY", str(BASE_DIR))
# Branch of that repository.
MAIN_BRANCH = read_text("MAIN_BRANCH", "main")
# Bare mirrors of the repositories that entries come from.
REPOSITORIES = HOME / "repositories"
# Ed25519 key that signs every job spec. Nodes pin its public half.
SIGNING_KEY = HOME / "keys" / "signing.key"
# A lease expires this long after its last heartbeat.
LEASE_SECONDS = read_number("LEASE_SECONDS", 60)
# Duration of one session of a volunteer of the dataset swarm: one lease.
REPHRASE_SESSION_SECONDS = read_number("REPHRASE_SESSION_SECONDS", 1800)
# Folder of files that a campaign can use as its source, besides datasets of the Hub.
REPHRASE_FILES = Path(read_text("REPHRASE_FILES", str(HOME / "sources" / "files")))
# Packets an hour for a new volunteer, until their work has agreed with that of others.
REPHRASE_NEW_PER_HOUR = read_integer("REPHRASE_NEW_PER_HOUR", 300)
# Retention of texts that are in no dataset: rejected, withdrawn, or written for comparison.
REPHRASE_TEXT_DAYS = read_number("REPHRASE_TEXT_DAYS", 30)
# Seconds between two polls of a node that waits for a job. `manage.py run` sets 2.
POLL_SECONDS = read_number("POLL_SECONDS", 10)

# --- GitHub (docs/how-to/github.md) ---------------------------------------------------------------------------------

# REST API of GitHub; of an Enterprise server: https://its-name/api/v3.
GITHUB_API_URL = read_text("GITHUB_API_URL", "https://api.github.com").rstrip("/")
# Repository whose pull requests are entries, as owner/name; default: MAIN_REPOSITORY if that is on github.com.
GITHUB_REPOSITORY = read_text("GITHUB_REPOSITORY")
# ID of the GitHub App.
GITHUB_APP_ID = read_text("GITHUB_APP_ID")
# Private key of the App in PEM form, with line ends or with \\n in their place.
GITHUB_PRIVATE_KEY = read_text("GITHUB_PRIVATE_KEY").replace("\\n", "\n")
# Personal access token, instead of an App.
GITHUB_TOKEN = read_text("GITHUB_TOKEN")
# Secret that signs webhooks; without it the webhook refuses every delivery.
GITHUB_WEBHOOK_SECRET = read_text("GITHUB_WEBHOOK_SECRET")
# Size limit of a delivery. The payload of a pull request has some 30 kB; its text up to 64 k characters.
GITHUB_WEBHOOK_MAX_BYTES = 4 * 2**20

# Issuer of the OpenID Connect tokens of CI jobs (docs/how-to/ci.md); of an Enterprise server:
# https://its-name/_services/token; empty: such tokens are refused.
GITHUB_OIDC_ISSUER = read_text("GITHUB_OIDC_ISSUER", "https://token.actions.githubusercontent.com").rstrip("/")
# Audience that these tokens must name.
GITHUB_OIDC_AUDIENCE = read_text("GITHUB_OIDC_AUDIENCE", SITE_URL)
# Repositories whose CI jobs may request runs: owner/name, owner/* or *; default: the main repository.
GITHUB_OIDC_REPOSITORIES = read_words("GITHUB_OIDC_REPOSITORIES")

# --- the Hugging Face Hub (docs/how-to/publishing.md) ------------------------------------------------------------

# Address of the Hub.
HUB_ENDPOINT = read_text("HUB_ENDPOINT", "https://huggingface.co").rstrip("/")
# Organization on the Hub that owns published weights; without it, or without a token, only the site offers them.
HUB_ORGANIZATION = read_text("HUB_ORGANIZATION")
# Token that may write to the organization. It stays on the server.
HF_TOKEN = read_text("HF_TOKEN")
# Runs whose weights are published without a maintainer's approval.
HUB_PUBLISH = read_words("HUB_PUBLISH", "record nightly monthly")
if unknown := set(HUB_PUBLISH) - {"record", "nightly", "monthly"}:
    raise ImproperlyConfigured(f"HUB_PUBLISH is {min(unknown)!r}: it takes record, nightly and monthly.")
# License of the weights: one of the Hub's identifiers.
HUB_LICENSE = read_text("HUB_LICENSE", "apache-2.0")

# --- notifications ------------------------------------------------------------------------------------------------

# SMTP server as an apprise URL: mailtos://user:password@smtp.example.org?from=train@example.org.
# Without it there are no notifications by e-mail.
MAIL_URL = read_text("MAIL_URL")

# --- page footer ----------------------------------------------------------------------------------------------------

# Link to the chat of the community, for example a Discord invitation.
CHAT_URL = read_text("CHAT_URL")
if CHAT_URL and not CHAT_URL.startswith("https://"):
    raise ImproperlyConfigured(f"CHAT_URL is {CHAT_URL!r}: it must begin with https://.")
# Names to thank, with optional links: `Name https://address; Name`.
ACKNOWLEDGEMENTS = [line.strip() for line in read_text("ACKNOWLEDGEMENTS").split(";") if line.strip()]

# --- sign-in ------------------------------------------------------------------------------------------------------

# ID of the OAuth app on GitHub; its callback is SITE_URL/accounts/github/login/callback/.
GITHUB_CLIENT_ID = read_text("GITHUB_CLIENT_ID")
# Secret of the OAuth app.
GITHUB_CLIENT_SECRET = read_text("GITHUB_CLIENT_SECRET")
# Allow sign-up with a password, for development. Off by default if sign-in with GitHub is configured.
LOCAL_ACCOUNTS = read_boolean("LOCAL_ACCOUNTS", not (GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET))
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "leaderboard.permissions.RolePermissionsBackend",
]
# Require a second factor of staff before the admin opens.
STAFF_TWO_STEP = read_boolean("STAFF_TWO_STEP", bool(GITHUB_CLIENT_ID) or SITE_URL.startswith("https://"))
# Function (request) -> bool: may this session use staff permissions? Used by `scheduler/sponsors/views.py`.
SECOND_STEP_CHECK = "dailytrain.two_factor.is_satisfied"
MFA_ADAPTER = "dailytrain.two_factor.MFAAdapter"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "my-nodes"
ACCOUNT_ADAPTER = "dailytrain.sign_in.AccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_UNIQUE_EMAIL = False
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
# Names that users cannot have: the actor of automatic actions in the audit log (`Event.actor`).
ACCOUNT_USERNAME_BLACKLIST = ["site"]
ACCOUNT_DEFAULT_HTTP_PROTOCOL = SITE_URL.partition(":")[0]
SOCIALACCOUNT_ADAPTER = "dailytrain.sign_in.GitHubAccountAdapter"
SOCIALACCOUNT_PROVIDERS = {
    "github": {
        "APPS": (
            [{"client_id": GITHUB_CLIENT_ID, "secret": GITHUB_CLIENT_SECRET}]
            if GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET
            else []
        ),
        "OAUTH_PKCE_ENABLED": True,
    }
}

# --- security headers and cookies ---------------------------------------------------------------------------------

# No third-party request, no inline script or style.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "connect-src": [SELF],
        "font-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if SITE_URL.startswith("https://"):
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_SSL_REDIRECT = True
    # Nodes, volunteers and health checks beside the site reach it without TLS; their calls carry no cookie.
    SECURE_REDIRECT_EXEMPT = [r"^api/node/", r"^(healthz|readyz)$"]
    # How long browsers remember that the site has TLS; 0: not at all.
    SECURE_HSTS_SECONDS = read_integer("HSTS_SECONDS", 365 * 24 * 3600)
# HSTS for all subdomains, and for lists inside browsers: other sites of the domain may have no TLS.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

# --- monitoring ---------------------------------------------------------------------------------------------------

# Token with which Prometheus reads /metrics; without it there is no such page (docs/how-to/operations.md).
METRICS_TOKEN = read_text("METRICS_TOKEN")

# Address of a project in Sentry that gets unhandled exceptions; empty: none are sent.
SENTRY_DSN = read_text("SENTRY_DSN")
# Name of this site there.
SENTRY_ENVIRONMENT = read_text("SENTRY_ENVIRONMENT", "production")

# --- time, language, logging --------------------------------------------------------------------------------------

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
# Format of the log on standard error: line, or json with the ids of requests, tasks, jobs and leases.
LOG_FORMAT = read_text("LOG_FORMAT", "line")
if LOG_FORMAT not in ("line", "json"):
    raise ImproperlyConfigured(f"LOG_FORMAT is {LOG_FORMAT!r}: it must be line or json.")
# Level of that log.
LOGGING = build_logging(LOG_FORMAT, read_text("LOG_LEVEL", "INFO"))
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
