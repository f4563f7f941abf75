-- clear: delete the semaphore. Holders lose their permits, and waiters start again.
--
-- KEYS     as in the prelude
-- ARGV     none of its own
-- RETURNS  {tag}

for _, owner in ipairs(redis.call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then tell(owner, 'cleared', '-') end
end
redis.call('UNLINK', unpack(KEYS))
return { tag }
