declare module '*.css'
declare module 'swagger-ui-dist/swagger-ui-es-bundle.js' {
  const SwaggerUI: (options: object) => void
  export default SwaggerUI
}
declare module 'react-dom/client' {
  export const createRoot: (element: HTMLElement | null) => { render(node: unknown): void }
}
