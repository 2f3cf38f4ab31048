"""Settings, all from the environment; with none set the site works on its embedded defaults under `var/`.

A wrong value stops the start with a sentence; half a configuration shows up in `manage.py check`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent


def text(name: str, default: str = "") -> str:
    """Return a variable, or the contents of the file that `<NAME>_FILE` points to (container secrets)."""
    if path := os.environ.get(f"{name}_FILE"):
        return Path(path).read_text().strip()
    return os.environ.get(name, default)


def boolean(name: str, default: bool) -> bool:
    value = text(name, str(default))
    if value not in ("True", "False"):
        raise ImproperlyConfigured(f"{name} is {value!r}: it must be True or False.")
    return value == "True"


def words(name: str, default: str = "") -> list[str]:
    return [word for word in text(name, default).replace(",", " ").split() if word]


def kept_secret(path: Path) -> str:
    """Return the secret in `path`; the first start makes one. Of several processes at once, one wins."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
    return path.read_text()


# Everything that lives only on this machine: database, files, keys, the local node.
HOME = Path(text("DAILYTRAIN_HOME", str(BASE_DIR / "var"))).resolve()
HOME.mkdir(parents=True, exist_ok=True)

DEBUG = boolean("DEBUG", False)
SECRET_KEY = text("SECRET_KEY") or kept_secret(HOME / "keys" / "secret_key")
ALLOWED_HOSTS = words("ALLOWED_HOSTS", "127.0.0.1 localhost [::1] testserver")
CSRF_TRUSTED_ORIGINS = words("CSRF_TRUSTED_ORIGINS")
SITE_URL = text("SITE_URL", "http://127.0.0.1:8000").rstrip("/")
"""Where visitors and nodes find the site; used in links and in the lines to paste."""
SITE_NAME = text("SITE_NAME", "The Daily Train")

INSTALLED_APPS = [
    "dailytrain.apps.TrainAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django_celery_beat",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.github",
    "ninja",
    "scheduler",
    "scheduler.campaigns",
    "leaderboard",
    "dailytrain",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dailytrain.null_bytes.NullByteFilter",
    "dailytrain.compression.Compression",
    "dailytrain.static_files.StaticFiles",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "dailytrain.headers.ContentSecurityPolicy",
]

ROOT_URLCONF = "dailytrain.urls"
ASGI_APPLICATION = "dailytrain.asgi.application"
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
            ],
        },
    }
]

# --- rows ---------------------------------------------------------------------------------------------------------

DATABASES = {"default": dj_database_url.parse(text("DATABASE_URL", f"sqlite:///{HOME / 'db.sqlite3'}"))}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        # Writers wait for each other instead of failing half-way through a transaction.
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    # A file as in real life, because threads and a live server share it.
    DATABASES["default"]["TEST"] = {"NAME": str(HOME / "test.sqlite3")}
elif pool := int(text("DATABASE_POOL", "0")):
    # Each request has a thread, and so a connection, of its own: without a pool PostgreSQL begins a process for each.
    # For web processes only: a pool does not survive the fork by which Celery begins its workers.
    # The threads of `scheduler.node_api.poll_endpoint` use up to eight more.
    DATABASES["default"]["OPTIONS"] = {"pool": {"min_size": 1, "max_size": pool + 8}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_PASSWORD_VALIDATORS = [{"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"}]

# --- broker, background work, caches ------------------------------------------------------------------------------

REDIS_URL = text("REDIS_URL", f"redis+socket://{HOME / 'redis' / 'redis.sock'}")
"""`manage.py run` starts an embedded server at the default address."""
CELERY_BROKER_URL = REDIS_URL
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 3600,
    "socket_connect_timeout": 2,
    "max_retries": 0,  # whoever sends a task does not wait for a broker that is down; the worker's own loop does
}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
CELERY_TIMEZONE = "UTC"

LOCAL_CACHE = {
    "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
    "OPTIONS": {"MAX_ENTRIES": 100_000},  # a rate limit that is evicted is no limit
}
CACHES = {
    "default": LOCAL_CACHE,
    # What all web processes count together. Only where a Redis is named: the embedded one serves a single process.
    "shared": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL.replace("redis+socket://", "unix://").partition("?")[0],
        "KEY_PREFIX": "dailytrain",
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 0.5},
    }
    if text("REDIS_URL")
    else LOCAL_CACHE,
    # Whole pages, compressed (`leaderboard/views/kept.py`): some tens of kilobytes each.
    "pages": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "pages",
        "OPTIONS": {"MAX_ENTRIES": 300},
    },
    # GitHub's tokens and answers: they stay in the memory of the process that asked.
    "github": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "LOCATION": "github",
        "OPTIONS": {"MAX_ENTRIES": 500},
    },
}

PAGES_KEPT_SECONDS = float(text("PAGES_KEPT_SECONDS", "2"))
"""So long visitors without an account get a page as it was, if nothing has happened meanwhile; 0: never."""

# --- files --------------------------------------------------------------------------------------------------------

S3_BUCKET = text("S3_BUCKET")
STORAGES = {
    "default": (
        {
            "BACKEND": "storages.backends.s3.S3Storage",
            "OPTIONS": {"bucket_name": S3_BUCKET, "endpoint_url": text("S3_ENDPOINT_URL") or None},
        }
        if S3_BUCKET
        else {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(HOME / "storage")},
        }
    ),
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
UPLOADS = HOME / "uploads"
"""Large files of nodes that arrive in pieces, until they are whole; best on the disk of the storage, if that is one."""
BLOB_MAX_BYTES = int(text("BLOB_MAX_BYTES", str(16 * 2**30)))
"""Size limit of one file of a node. The largest is a checkpoint's optimizer state, 7.8 GiB for a night on one H100."""
LEASE_MAX_BYTES = int(text("LEASE_MAX_BYTES", str(256 * 2**30)))
"""Size limit of the files that are kept under one lease; superseded checkpoints do not count."""
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = text("STATIC_ROOT", str(HOME / "static"))
Path(STATIC_ROOT).mkdir(parents=True, exist_ok=True)  # WhiteNoise warns of a folder that is not there
WHITENOISE_USE_FINDERS = True

# --- the train ----------------------------------------------------------------------------------------------------

JOB_KINDS = {
    "train": "leaderboard.job_handlers.train.Training",
    "score": "leaderboard.job_handlers.score.Scorings",
    "replay": "leaderboard.job_handlers.replays.Replaying",
    "notebook": "leaderboard.job_handlers.notebooks.Executing",
    "smoke": "leaderboard.job_handlers.smoke_tests.Smoking",
    "generate": "leaderboard.job_handlers.generation.Generating",
    "rephrase": "scheduler.campaigns.sessions.RephraseSessionHandler",
    "swarm": "leaderboard.job_handlers.swarm.Coordinating",
    "seat": "leaderboard.job_handlers.swarm.Seats",
}
SMOKE_UNAPPROVED = text("SMOKE_UNAPPROVED", "known")
"""Whose code may have its smoke run before a maintainer has looked at it, on trusted nodes, in the sandbox: that of
"nobody", "known" (signed in, or approved before) or "anyone"."""
if SMOKE_UNAPPROVED not in ("nobody", "known", "anyone"):
    raise ImproperlyConfigured(f"SMOKE_UNAPPROVED is {SMOKE_UNAPPROVED!r}: it must be nobody, known or anyone.")
GENERATE_PER_HOUR = int(text("GENERATE_PER_HOUR", "60"))
"""Prompts of visitors that the pool answers in an hour, all together; 0: visitors cannot let models write."""
GENERATE_WAITING = int(text("GENERATE_WAITING", "20"))
"""So many may wait for a node at a time."""
GENERATE_SECONDS = float(text("GENERATE_SECONDS", "180"))
"""Wall seconds that one of them may take, loading the model included."""
EFFECT_KINDS: dict[str, str] = {
    "github.follow": "leaderboard.integrations.github.sync.follow",
    "github.command": "leaderboard.integrations.github.slash_commands.obey",
    "github.comment": "leaderboard.integrations.github.comments.comment",
    "github.check": "leaderboard.integrations.github.comments.check",
    "github.answer": "leaderboard.integrations.github.comments.answer",
    "github.commit": "leaderboard.integrations.github.commit_status.carry_out",
    "notice": "leaderboard.notifications.delivery.carry_out",
    "hub": "leaderboard.publishing.publications.carry_out",
    "hub.dataset": "leaderboard.publishing.datasets.publish",
}
"""{kind of effect: dotted path of its handler} (`leaderboard/outbox.py`)."""
POOL_TRACKS = "leaderboard.runs.tracks"
"""Function that names what a node can be lent to alone (`scheduler.job_kinds.list_tracks`)."""
NODE_IMAGE = text("NODE_IMAGE", "dailytrain-node")
"""Container image of the agent, in the line that a sponsor pastes (Dockerfile, target `node`)."""
VOLUNTEER_IMAGE = text("VOLUNTEER_IMAGE", "dailytrain-volunteer")
"""The same for a volunteer of the dataset swarm, on a campaign's page (Dockerfile, target `volunteer`)."""
NODE_PACKAGE = text("NODE_PACKAGE", "dailytrain[training]")
"""What pipx installs for a sponsor without Docker: a name on a package index, or an address of a wheel."""
MAIN_REPOSITORY = text("MAIN_REPOSITORY", str(BASE_DIR))
"""Address or path of the repository whose `main` is trained every night."""
MAIN_BRANCH = text("MAIN_BRANCH", "main")
REPOSITORIES = HOME / "repositories"
"""Bare mirrors of the repositories that entries come from."""
SIGNING_KEY = HOME / "keys" / "signing.key"
"""Ed25519; signs every job spec. Nodes pin its public half."""
LEASE_SECONDS = float(text("LEASE_SECONDS", "60"))
SITTING_SECONDS = float(text("SITTING_SECONDS", "1800"))
"""So long a volunteer of the dataset swarm works under one lease, before the next."""
REPHRASE_FILES = Path(text("REPHRASE_FILES", str(HOME / "sources" / "files")))
"""Where files lie that a campaign can be made of, beside the datasets of the Hub."""
REPHRASE_NEW_PER_HOUR = int(text("REPHRASE_NEW_PER_HOUR", "300"))
"""Packets that a volunteer gets in an hour whom nobody knows, until their work has agreed with others'."""
REPHRASE_TEXT_DAYS = float(text("REPHRASE_TEXT_DAYS", "30"))
"""So long texts are kept that are in no dataset: rejected, withdrawn, or written for comparison."""
QUEUE_READ_SECONDS = float(text("QUEUE_READ_SECONDS", "1"))
"""So long the questions of one process share a look at the queue; 0: each has its own."""

# --- GitHub (docs/github.md; manage.py connect_github says what is missing) -----------------------------------------

GITHUB_API_URL = text("GITHUB_API_URL", "https://api.github.com").rstrip("/")
"""An Enterprise server's is https://its-name/api/v3."""
GITHUB_REPOSITORY = text("GITHUB_REPOSITORY")
"""owner/name, whose pull requests are entries; without it, MAIN_REPOSITORY if that is on github.com."""
GITHUB_APP_ID = text("GITHUB_APP_ID")
GITHUB_PRIVATE_KEY = text("GITHUB_PRIVATE_KEY").replace("\\n", "\n")
"""Of the App, in PEM form; one line with \\n for line ends will do."""
GITHUB_TOKEN = text("GITHUB_TOKEN")
"""Instead of an App: a personal access token."""
GITHUB_WEBHOOK_SECRET = text("GITHUB_WEBHOOK_SECRET")
"""Without it the webhook takes nothing."""
GITHUB_WEBHOOK_MAX_BYTES = 4 * 2**20
"""A pull request's payload has some 30 kB; its text may have 64 k characters."""

GITHUB_OIDC_ISSUER = text("GITHUB_OIDC_ISSUER", "https://token.actions.githubusercontent.com").rstrip("/")
"""Whose word CI jobs may bring instead of a token (docs/ci.md). An Enterprise server's is
https://its-name/_services/token; empty: nobody's."""
GITHUB_OIDC_AUDIENCE = text("GITHUB_OIDC_AUDIENCE", SITE_URL)
"""What their word must be meant for."""
GITHUB_OIDC_REPOSITORIES = words("GITHUB_OIDC_REPOSITORIES")
"""Of CI jobs that may ask: owner/name, owner/* or *; without it, the main repository alone."""

# --- the Hugging Face Hub (docs/publishing.md) -------------------------------------------------------------------

HUB_ENDPOINT = text("HUB_ENDPOINT", "https://huggingface.co").rstrip("/")
HUB_ORGANISATION = text("HUB_ORGANISATION")
"""Owns what is published; without it, or without a token, weights are given by the site alone."""
HF_TOKEN = text("HF_TOKEN")
"""May write to the organisation. It stays on the server."""
HUB_PUBLISH = words("HUB_PUBLISH", "record nightly")
"""Which runs are published without a maintainer's word: record, nightly, monthly."""
if unknown := set(HUB_PUBLISH) - {"record", "nightly", "monthly"}:
    raise ImproperlyConfigured(f"HUB_PUBLISH is {min(unknown)!r}: it takes record, nightly and monthly.")
HUB_LICENCE = text("HUB_LICENCE", "apache-2.0")
"""Of the weights: one of the Hub's identifiers."""

MAIL_URL = text("MAIL_URL")
"""The site's SMTP server, as apprise writes it: mailtos://user:password@smtp.example.org?from=train@example.org.
Without it nobody can have notices by e-mail."""
NOTICES_TO_PRIVATE_HOSTS = boolean("NOTICES_TO_PRIVATE_HOSTS", False)
"""Webhooks of subscribers may be hosts of this network, and plain http: for a site whose users all belong to it."""

# --- words in the foot of every page ------------------------------------------------------------------------------

CHAT_URL = text("CHAT_URL")
"""Where people talk about the train: a Discord invitation, say."""
if CHAT_URL and not CHAT_URL.startswith("https://"):
    raise ImproperlyConfigured(f"CHAT_URL is {CHAT_URL!r}: it must begin with https://.")
ACKNOWLEDGEMENTS = [line.strip() for line in text("ACKNOWLEDGEMENTS").split(";") if line.strip()]
"""Who is thanked: `Name https://address; Name`, an address being optional."""

# --- sign-in ------------------------------------------------------------------------------------------------------

GITHUB_CLIENT_ID = text("GITHUB_CLIENT_ID")
GITHUB_CLIENT_SECRET = text("GITHUB_CLIENT_SECRET")
"""Of an OAuth app on GitHub; its callback is SITE_URL/accounts/github/login/callback/."""
LOCAL_ACCOUNTS = boolean("LOCAL_ACCOUNTS", not (GITHUB_CLIENT_ID and GITHUB_CLIENT_SECRET))
"""Anybody may make an account with a password: for development. Off as soon as there is GitHub."""
AUTHENTICATION_BACKENDS = ["django.contrib.auth.backends.ModelBackend", "leaderboard.permissions.Rights"]
STAFF_TWO_STEP = boolean("STAFF_TWO_STEP", bool(GITHUB_CLIENT_ID) or SITE_URL.startswith("https://"))
"""Before the admin opens to staff: a code from an app."""
SECOND_STEP_CHECK = "dailytrain.two_factor.is_satisfied"
"""Function of a request: whether its session may use staff permissions (`sponsors.views.can_manage_nodes`)."""
MFA_ADAPTER = "dailytrain.two_factor.TwoStep"
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes"]
MFA_TOTP_TOLERANCE = 1  # codes before and after: the clocks of phones differ
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "my-nodes"
ACCOUNT_ADAPTER = "dailytrain.sign_in.Accounts"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_UNIQUE_EMAIL = False  # an address is nobody's name here
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
ACCOUNT_USERNAME_BLACKLIST = ["site"]
"""Who acts in the audit log when it is nobody (`Event.actor`)."""
ACCOUNT_DEFAULT_HTTP_PROTOCOL = SITE_URL.partition(":")[0]
SOCIALACCOUNT_ADAPTER = "dailytrain.sign_in.GitHubAccounts"
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

# --- the rest -----------------------------------------------------------------------------------------------------

USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
if SITE_URL.startswith("https://"):
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 2**20
BODY_MAX_BYTES = 8 * 2**20
"""Of any request but the upload of a node's file."""
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": text("LOG_LEVEL", "INFO")},
    # Lower, these write down the addresses that subscribers' notices go to; who knows one may write there.
    "loggers": {name: {"level": "WARNING"} for name in ("apprise", "httpcore", "httpx", "urllib3")},
}
