import { hostname } from 'node:os'
import { SpanKind as Kind, ROOT_CONTEXT, type SpanContext, SpanStatusCode, trace as traces } from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-proto'
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources'
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace'
import { version } from '../../shared/version.ts'
import type { SpanKind, Tracer } from './tracing.ts'

const KINDS: Record<SpanKind, Kind> = {
  server: Kind.SERVER,
  internal: Kind.INTERNAL,
  producer: Kind.PRODUCER,
  client: Kind.CLIENT,
}

/**
 * Makes spans and sends them by OTLP over HTTP. OpenTelemetry's own variables configure the address, sampling and
 * service name: `OTEL_EXPORTER_OTLP_…`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
 * `OTEL_BSP_…`.
 */
export const createTracer = (env: NodeJS.ProcessEnv): Tracer => {
  const resource = defaultResource()
    .merge(resourceFromAttributes({ 'service.name': 'tidings', 'service.version': version, 'host.name': hostname() }))
    .merge(detectResources({ detectors: [envDetector] }))
  const provider = new TracerProvider({
    resource,
    sampler: samplerOf(env),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter(), ...batchesOf(env) })],
  })
  const tracer = provider.getTracer('tidings', version)
  return {
    start(name, { kind, parent, attributes, startedAt }) {
      const context = parent ? traces.setSpanContext(ROOT_CONTEXT, contextOf(parent)) : ROOT_CONTEXT
      const options = { kind: KINDS[kind], attributes, ...(startedAt !== undefined && { startTime: startedAt }) }
      const span = tracer.startSpan(name, options, context)
      return {
        traceparent: traceparentOf(span.spanContext()),
        tell: attributes => void span.setAttributes(attributes),
        end(failure) {
          if (failure !== undefined) span.setStatus({ code: SpanStatusCode.ERROR, message: failure })
          span.end()
        },
      }
    },
    stop: () => provider.shutdown(),
  }
}

const contextOf = (traceparent: string): SpanContext => {
  const [, traceId, spanId, flags] = traceparent.split('-')
  return { traceId: traceId!, spanId: spanId!, traceFlags: Number.parseInt(flags!, 16) & 1, isRemote: true }
}

const traceparentOf = ({ traceId, spanId, traceFlags }: SpanContext): string =>
  `00-${traceId}-${spanId}-0${traceFlags & 1}`

/** The samplers of `OTEL_TRACES_SAMPLER`, by OpenTelemetry's names. */
const samplerOf = ({ OTEL_TRACES_SAMPLER: name = '', OTEL_TRACES_SAMPLER_ARG: ratio }: NodeJS.ProcessEnv) => {
  const share = ratio === undefined || !(Number(ratio) >= 0 && Number(ratio) <= 1) ? 1 : Number(ratio)
  const root = name.endsWith('always_off')
    ? new AlwaysOffSampler()
    : name.endsWith('traceidratio')
      ? new TraceIdRatioBasedSampler(share)
      : new AlwaysOnSampler()
  return name === '' || name.startsWith('parentbased_') ? new ParentBasedSampler({ root }) : root
}

const batchesOf = (env: NodeJS.ProcessEnv) => {
  const given = {
    scheduledDelayMillis: Number(env.OTEL_BSP_SCHEDULE_DELAY),
    maxQueueSize: Number(env.OTEL_BSP_MAX_QUEUE_SIZE),
    maxExportBatchSize: Number(env.OTEL_BSP_MAX_EXPORT_BATCH_SIZE),
  }
  return Object.fromEntries(Object.entries(given).filter(([, value]) => value > 0))
}
